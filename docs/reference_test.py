"""The site has every guide, and its reference every public name."""

import importlib
import re

import pytest

from docs import markdown

_DOCS = markdown.REPO / "docs"
_ENTRY = re.compile(r"^\.\. (?:auto)?\w+:: ([\w.]+)(?:\(\))?$((?:\n {3}.*)*)", re.MULTILINE)
_IMPORT = re.compile(r"^ *from ((?:terngrad|slim|inception)[\w.]*) import ([\w, ]+)$", re.MULTILINE)


def _entries() -> dict[str, str]:
    """The names that the reference describes, of modules too, and the options of each."""
    pages = [page.read_text(encoding="utf-8") for page in sorted(_DOCS.glob("reference/*.rst"))]
    return {match[1]: match[2] for page in pages for match in _ENTRY.finditer(page)}


def _listed(options: str) -> list[str]:
    """The members that an entry names; none if it takes all, or has none."""
    match = re.search(r":members:((?:[\w, ]|\n {6,})*)", options)
    return re.findall(r"\w+", match[1]) if match else []


def _resolve(name: str) -> object:
    """The object of a dotted name."""
    parts = name.split(".")
    module = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(module, part):
            importlib.import_module(".".join(parts[:i]))
        module = getattr(module, part)
    return module


def _is_described(module: str, name: str) -> bool:
    """Whether a name of a module has an entry, or the module has one for all or for this."""
    entries = _entries()
    if f"{module}.{name}" in entries:
        return True
    options = entries.get(module, "")
    is_member = ":members:" in options and callable(_resolve(f"{module}.{name}"))
    return is_member and (not _listed(options) or name in _listed(options))


def _imported() -> set[tuple[str, str]]:
    """What the Python blocks of the guides import of the packages: modules and names."""
    texts = [b.text for p in markdown.pages() for b in markdown.blocks(p) if b.language == "python"]
    found = (match for text in texts for match in _IMPORT.finditer(text))
    return {(match[1], name) for match in found for name in match[2].split(", ")}


@pytest.mark.parametrize("name", _entries())
def test_an_entry_and_the_members_that_it_names_exist(name):
    found = _resolve(name)
    assert [member for member in _listed(_entries()[name]) if not hasattr(found, member)] == []


@pytest.mark.parametrize("module", ["terngrad", "terngrad.keras", "terngrad.numpy"])
def test_every_public_name_has_an_entry(module):
    names = importlib.import_module(module).__all__
    assert [name for name in names if not _is_described(module, name)] == []


def test_what_the_guides_import_has_an_entry():
    imported = {pair for pair in _imported() if pair[0] != "slim.datasets"}  # a list of modules
    assert len(imported) > 10
    missing = {pair for pair in imported if not _is_described(*pair)}
    assert not missing


def test_every_method_of_a_group_that_the_guides_call_has_an_entry():
    called = {
        name
        for page in markdown.pages()
        for name in re.findall(r"\bgroup\.(\w+)\(", page.read_text(encoding="utf-8"))
    }
    assert len(called) > 8
    assert called <= set(_listed(_entries()["terngrad.Group"]))


def test_the_site_has_every_page():
    listed = (_DOCS / "index.rst").read_text(encoding="utf-8").split()
    reference = (_DOCS / "reference/index.rst").read_text(encoding="utf-8").split()
    assert {page.stem for page in _DOCS.glob("*.md")} <= set(listed)
    pages = {page.stem for page in _DOCS.glob("reference/*.rst")}
    assert pages - {"index"} <= set(reference)
