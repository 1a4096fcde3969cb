"""The page as text: the same for the same runs, nothing from the network, data that no name can break out of."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from codecl.report.configurations import gather
from codecl.report.figures import Lines, Network, Section, Series
from codecl.report.page import asset, colours, context, embed, named, render
from codecl.report.tables import in_paper
from tests.browser import pages
from tests.problems import change_metrics, recorded_run


class Tags(HTMLParser):
    """All elements with their attributes, and the text of the data."""

    def __init__(self, text):
        super().__init__()
        self.found, self.data, self._in = [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._in = dict(attrs).get("id") == "data"

    def handle_endtag(self, tag):
        self._in = False

    def handle_data(self, data):
        self.data += data if self._in else ""


@pytest.mark.parametrize("make", [pages.page, pages.hostile])
def test_equal_pages_give_equal_text_and_nothing_is_fetched(make):
    text = render(make())
    assert text == render(make())
    for tag, attributes in Tags(text).found:
        for name in ("src", "srcset", "poster", "action", "data"):
            assert name not in attributes, (tag, attributes)
        assert attributes.get("href", "#").startswith(("#", "data:"))
    ours = text.replace(asset("echarts.min.js"), "")
    assert not re.search(r"https?://|@import|url\(", ours)
    assert len(text.encode()) < 3_000_000


def test_the_bundle_is_small_and_names_its_licence():
    bundle = asset("echarts.min.js")
    assert len(bundle) < 1_000_000
    assert "Apache License 2.0" in bundle
    assert "Apache License" in asset("LICENSE-echarts.txt")
    assert "The Apache Software Foundation" in asset("NOTICE-echarts.txt")


@pytest.mark.parametrize("make", [pages.page, pages.hostile])
def test_the_data_is_what_was_given(make):
    made = make()
    sections = json.loads(Tags(render(made)).data)["sections"]
    assert [section["key"] for section in sections] == [section.key for section in made.sections]
    assert [figure["of"] for figure in sections[-1]["figures"]] == list(made.sections[-1].figures)
    first = made.sections[0].figures[""]
    assert sections[0]["figures"][0]["series"][0]["y"] == list(first.series[0].y)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1.0, float("nan"), float("inf"), -float("inf"), None], "[1,null,null,null,null]"),
        (0.1 + 0.2, "0.3"),
        (1.23456789e-8, "1.23457e-08"),
        (123456789012, "123456789012"),
        (np.float32(0.5), "0.5"),
        (np.array([[1, 2], [3, 4]]), "[[1,2],[3,4]]"),
        (range(3), "[0,1,2]"),
        (True, "true"),
        (Series("a", (1,), (2,)), '{"name":"a","x":[1],"y":[2],"std":null}'),
    ],
)
def test_numbers_are_embedded_so_that_json_can_be_read(value, text):
    assert embed(value) == text


def test_no_name_ends_the_script_element():
    names = ["</script>", "<!--", "<script>", "]]>", "&lt;"]
    text = embed(names)
    assert not set("<>&") & set(text)
    assert json.loads(text) == names


def test_a_section_without_figures_is_left_out():
    empty = pages.page()._replace(sections=[Section("nothing", "Nothing", {})])
    assert "Nothing" not in render(empty)


def test_what_was_left_out_is_said_with_its_reason():
    text = render(pages.page())
    assert re.search(r"<h2>Left out</h2>\s*<ul>\s*<li><code>runs/broken/seed-1</code> events.jsonl is missing", text)
    assert "Left out" not in render(pages.page()._replace(refused=[]))


def test_a_sentence_says_what_the_runs_are(copied):
    runs = gather([copied]).runs
    assert context(runs) == "4 runs of 2 configurations; preset: quickstart."
    assert context(runs[:1]) == "1 run of 1 configuration; preset: quickstart."
    change_metrics(recorded_run(copied), benchmark="mine")
    assert context(gather([copied]).runs) == "4 runs of 2 configurations; presets: mine, quickstart."


def lines(key, names):
    return Lines(key, key, "", "x", "y", [Series(name, [0], [0]) for name in names])


def test_a_name_that_several_sections_use_has_the_same_colour_in_all():
    found = colours(
        [
            Section("a", "A", {"": lines("a", ["codec", "dpsgd"])}),
            Section("b", "B", {"dpsgd": lines("b", ["conv1", "fc"]), "codec": lines("b", ["conv1", "head"])}),
            Section("c", "C", {"": lines("c", ["dpsgd", "full"])}),
        ]
    )
    assert found["a"] == {"codec": 0, "dpsgd": 1}
    assert found["b"] == {"conv1": 0, "fc": 1, "head": 2}
    assert found["c"] == {"dpsgd": 1, "full": 2}  # not codec's, though codec is not here


def test_colours_of_a_section_are_all_different():
    names = [f"configuration {number}" for number in range(30)]
    found = colours(
        [Section(key, key, {"": lines(key, [*names[::step], "own"])}) for key, step in {"a": 1, "b": 3}.items()]
    )
    for slots in found.values():
        assert len(set(slots.values())) == len(slots)


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
    assert [name for name in ("quickstart", "split-cifar100", "split-cifar100-tuned", "mine") if in_paper(name)] == [
        "split-cifar100",
        "split-cifar100-tuned",
    ]
