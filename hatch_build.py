"""README.md as the package's description. There its relative links have no page to start from, so here they get one."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    """Links of README.md lead to the repository that `project.urls` names."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, metadata["urls"]["Source"])}


def absolute(text: str, source: str) -> str:
    """Markdown whose relative links and pictures lead to `source`; code stays as it is."""

    def link(match: re.Match[str]) -> str:
        if match["code"]:
            return match["code"]
        kind = "raw" if match["picture"] else "blob"
        return f"{match['picture']}[{match['words']}]({source}/{kind}/main/{match['path']})"

    code = r"(?P<code>```.*?```|`[^`\n]+`(?!\]))"
    relative = r"(?P<picture>!?)\[(?P<words>[^]]*)\]\((?!#|[a-z]+:)(?P<path>[^)]+)\)"
    return re.sub(f"{code}|{relative}", link, text, flags=re.S)
