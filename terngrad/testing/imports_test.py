"""What tests share lies in modules of its own, and only tests need pytest."""

import ast
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
FOLDERS = ["benchmarks", "inception", "scripts", "slim", "terngrad"]
SOURCES = [path for folder in FOLDERS for path in sorted((REPO / folder).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """Names that a module imports, with their packages."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def is_for_tests(path: Path) -> bool:
    """Whether a module belongs to the tests."""
    in_testing = path.is_relative_to(REPO / "terngrad/testing")
    return path.name.endswith("_test.py") or path.name == "conftest.py" or in_testing


@pytest.mark.parametrize("folder", FOLDERS)
def test_nobody_imports_a_module_of_tests(folder):
    modules = {str(path.relative_to(REPO).with_suffix("")).replace("/", ".") for path in SOURCES}
    tests = {module for module in modules if module.endswith("_test")}
    assert tests
    for path in SOURCES:
        if path.is_relative_to(REPO / folder):
            assert not imported(path) & tests, path


def test_only_tests_import_pytest():
    users = [path for path in SOURCES if "pytest" in imported(path)]
    assert users
    assert all(map(is_for_tests, users)), [path for path in users if not is_for_tests(path)]
