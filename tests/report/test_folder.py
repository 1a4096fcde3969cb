"""The names of a report's files."""

from codecl.report.figures.figure import Network, Section
from codecl.report.folder import named
from codecl.report.paper import has

FIGURE = Network("network", "", "", [(0.0, 0.0)], [])


def test_a_figure_alone_has_its_key_and_one_of_several_its_configuration_too():
    alone = Section("a", "A", {"": FIGURE._replace(key="acc")})
    several = Section("b", "B", {"codec · ring 4": FIGURE, "dpsgd/../x": FIGURE})
    assert [name for name, _ in named([alone, several])] == ["acc", "network--codec-ring-4", "network--dpsgd-x"]


def test_no_two_figures_have_the_same_files():
    names = ["ä", "ö", "codec a", "codec-a", "x" * 300, "x" * 301]
    found = [name for name, _ in named([Section("a", "A", dict.fromkeys(names, FIGURE))] * 2)]
    assert len(set(found)) == 12
    assert max(map(len, found)) < 100


def test_the_papers_presets_are_known():
    assert [name for name in ("quickstart", "split-cifar100", "split-cifar100-tuned", "mine") if has(name)] == [
        "split-cifar100",
        "split-cifar100-tuned",
    ]
