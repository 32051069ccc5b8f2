"""The tour of docs/development.md names every folder and module, and nothing else."""

import re

from docs import markdown

_ROOTS = (
    "slim",
    "terngrad",
    "inception",
    "scripts",
    "benchmarks",
    "examples",
    "docs",
    "bazel",
    "deploy",
)
_PATH = re.compile(r"`([\w./]+(?:/|\.py|\.sh))`")


def _rows() -> list[tuple[list[str], str]]:
    """The folders of each row of the tour, and the whole row."""
    text = (markdown.REPO / "docs/development.md").read_text(encoding="utf-8")
    tour = text.partition("## A tour of the folders")[2].partition("\n## ")[0]
    rows = [line for line in tour.splitlines() if line.startswith("| `")]
    return [(_PATH.findall(row.split("|")[1]), row) for row in rows]


def _folders() -> set[str]:
    """The folders that hold files, as the tour writes them."""
    found = set()
    for root in _ROOTS:
        folder = markdown.REPO / root
        for path in (folder, *folder.rglob("*/")):
            own = path.relative_to(markdown.REPO)
            is_made = any(part.startswith(("__", ".")) for part in own.parts)
            holds_files = path.is_dir() and any(child.is_file() for child in path.iterdir())
            if holds_files and not is_made and own.parts[:2] != ("bazel", "stubs"):
                found.add(f"{own}/")
    return found


def test_the_tour_names_every_folder():
    named = {path for _, row in _rows() for path in _PATH.findall(row)}
    assert _folders() - named == set()


def test_what_the_tour_names_exists():
    for folders, row in _rows():
        for path in _PATH.findall(row):
            places = (markdown.REPO, *(markdown.REPO / folder for folder in folders))
            assert any((place / path).exists() for place in places), path


def test_the_tour_names_every_module_at_the_top_of_the_libraries():
    for package in ("slim", "terngrad"):
        (row,) = (row for folders, row in _rows() if folders == [f"{package}/"])
        modules = {path.name for path in (markdown.REPO / package).glob("*.py")}
        tests = {name for name in modules if name.endswith(("_test.py", "conftest.py"))}
        assert modules - tests - {"__init__.py"} <= set(_PATH.findall(row))
