"""How the site is built: `make docs`. Its source is the repository's root, so that links to benchmarks/ are links."""

import sys
from pathlib import Path

from codecl import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project, author, release = "codecl", "the codecl developers", __version__
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "reference"]

root_doc = "docs/index"
source_suffix = {".md": "markdown"}
include_patterns = ["docs/**", "benchmarks/*.md", "CHANGELOG.md"]
exclude_patterns = [".*", "build", "dist", "runs", "src", "tests", "docs/_*"]
highlight_language = "none"
smartquotes = False

myst_heading_anchors = 4  # the anchors that GitHub has

autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 60
nitpick_ignore_regex = [("py:.*", r"(?!codecl\.\w+$).*")]  # names of other libraries, and our own that are not exported

html_theme = "furo"
html_title = "codecl"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "to-index.html"}  # the site's root leads to docs/index.html
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = False
html_use_index = False
