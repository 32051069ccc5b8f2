"""Links and pictures of the pages exist, and blocks say what they are."""

import re

import pytest

from docs import markdown

every_page = pytest.mark.parametrize("page", markdown.pages(), ids=lambda page: page.name)


@every_page
def test_a_link_leads_to_a_file_and_a_heading_of_it(page):
    for target in markdown.links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor:
            assert anchor in markdown.anchors(file), f"{page.name}: {path} has no heading {anchor}"


@every_page
def test_a_block_names_its_language(page):
    for block in markdown.blocks(page):
        allowed = ("bash", "python", "text", "proto", "json")
        assert block.language in allowed, f"{block.place}: a block must be of {allowed}"


@every_page
def test_a_block_of_commands_or_of_python_says_how_it_is_tested(page):
    for block in markdown.blocks(page):
        if block.language in ("bash", "python"):
            assert block.marker, f"{block.place}: needs a comment before it, see development.md"


@every_page
def test_commands_stand_in_fenced_blocks(page):
    starts = re.compile(r"^ {4,}(python|bash|mpirun|horovodrun|pip) ", re.MULTILINE)
    found = starts.search(page.read_text(encoding="utf-8"))
    assert not found, f"{page.name}: {found and found[0].strip()} is in an indented block"


def test_the_front_page_is_short_and_begins_with_what_there_is():
    lines = (markdown.REPO / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 130
    for package in ("terngrad/", "slim/", "inception/"):
        assert any(package in line for line in lines[:10])
