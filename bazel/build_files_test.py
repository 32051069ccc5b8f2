"""The BUILD files keep in step with the tree: files have targets, imports are dependencies."""

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

import pytest

from terngrad.ops import build, library
from terngrad.testing.imports import imports, texts

_REPO = Path(__file__).parents[1]
_ROOTS = (
    "slim",
    "terngrad",
    "inception",
    "benchmarks",
    "docs",
    "scripts",
    "deploy",
    "bazel",
    "examples",
)
_MAIN = '\nif __name__ == "__main__":'

pytestmark = [
    pytest.mark.skipif(not shutil.which("bazel"), reason="Bazel is not installed"),
    pytest.mark.slow,
]


class Target(NamedTuple):
    """A target's rule, its files relative to the repository, and the labels it depends on."""

    rule: str
    files: frozenset[str]
    deps: frozenset[str]


@pytest.fixture(scope="module")
def targets() -> dict[str, Target]:
    """All targets by label, as Bazel reads the BUILD files."""
    found = ET.fromstring(_bazel("query", "kind(rule, //...)", "--output=xml"))
    return {rule.get("name"): _target(rule) for rule in found.iter("rule")}


def _bazel(*words: str) -> str:
    """What a command of Bazel's prints; its python3 is that of this process."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    done = subprocess.run(
        ["bazel", *words], cwd=_REPO, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _target(rule: ET.Element) -> Target:
    labels = {
        name: frozenset(
            label.get("value") for label in rule.iterfind(f"list[@name='{name}']/label")
        )
        for name in ("srcs", "hdrs", "textual_hdrs", "deps")
    }
    deps = labels.pop("deps")
    files = frozenset(map(_file, frozenset.union(*labels.values())))
    return Target(rule.get("class"), files, deps)


def _file(label: str) -> str:
    return label.removeprefix("//").replace(":", "/").removeprefix("/")


@functools.cache
def _modules() -> dict[str, str]:
    """All modules of the repository, also those at its top."""
    top = {path.stem: path.read_text() for path in _REPO.glob("*.py") if path.stem != "setup"}
    return texts(_REPO, _ROOTS) | top


def _path(module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if (_REPO / path / "__init__.py").exists() else f"{path}.py"


def _labels_by_file(rules: tuple[str, ...], targets: dict[str, Target]) -> dict[str, list[str]]:
    """Returns, for each file, the labels of the targets of these rules that have it."""
    found: dict[str, list[str]] = {}
    for label, target in targets.items():
        for file in target.files if target.rule in rules else ():
            found.setdefault(file, []).append(label)
    return found


def _allowed_rules(module: str) -> tuple[str, ...]:
    """Returns the rules of which one must have the module's file in a target."""
    if module.endswith("_test"):
        return ("py_test",)
    is_program = _MAIN in _modules()[module]
    return ("py_binary", "py_test") if is_program else ("py_library",)


def test_every_module_program_and_test_has_a_target(targets):
    missing = {
        f"{_path(module)} is in no {' or '.join(_allowed_rules(module))}"
        for module in _modules()
        if not _labels_by_file(_allowed_rules(module), targets).get(_path(module))
    }
    assert not missing, "\n".join(sorted(missing))


def test_every_native_source_has_a_target(targets):
    known = _labels_by_file(("cc_library", "cc_test"), targets)
    folder = _REPO / "terngrad/cc"
    paths = [path for path in folder.rglob("*") if path.suffix in (".c", ".cc", ".h")]
    files = {str(path.relative_to(_REPO)) for path in paths}
    assert files - set(known) == set()
    tests = _labels_by_file(("cc_test",), targets)
    assert {file for file in files if file.endswith("_test.cc")} <= set(tests)


def test_every_shell_test_has_a_target(targets):
    paths = [path for root in _ROOTS for path in (_REPO / root).rglob("*_test.sh")]
    files = {str(path.relative_to(_REPO)) for path in paths}
    assert files == set(_labels_by_file(("sh_test",), targets))


def _with_all_deps(label: str, targets: dict[str, Target]) -> frozenset[str]:
    """Returns the labels of a target and of all its direct and indirect dependencies."""
    reached: set[str] = set()
    waiting = [label]
    while waiting:
        label = waiting.pop()
        if label in targets and label not in reached:
            reached.add(label)
            waiting += targets[label].deps
    return frozenset(reached)


def test_every_import_is_a_dependency(targets):
    """Of the library itself; programs and tests may also reach it through their libraries."""
    python = ("py_library", "py_binary", "py_test")
    known = _labels_by_file(python, targets)
    modules = _modules()
    missing = set()
    for found in imports(modules):
        target = found.target
        while target and target not in modules:
            target = target.rpartition(".")[0]
        if not target:
            continue
        for label in known.get(_path(found.module), ()):
            direct = {label} | targets[label].deps
            is_library = targets[label].rule == "py_library"
            reached = direct if is_library else _with_all_deps(label, targets)
            if _runs_in_the_tree(label) or reached & set(known[_path(target)]):
                continue
            missing.add(f"{label} lacks {' or '.join(known[_path(target)])} for {target}")
    assert not missing, "\n".join(sorted(missing))


def _runs_in_the_tree(label: str) -> bool:
    return label.partition(":")[0] in ("//", "//docs", "//scripts", "//bazel")


def test_what_is_compiled_does_not_depend_on_the_path_of_the_caller():
    actions = _bazel("aquery", "deps(//terngrad/ops:kernels.so + //terngrad/ops:sealed_kernels)")
    paths = set(re.findall(r"Environment: \[.*\bPATH=([^,\]]*)", actions))
    assert paths == {"/bin:/usr/bin:/usr/local/bin"}
    assert "CppCompile" in actions and "Genrule" in actions


def test_bazel_compiles_the_kernels_with_the_flags_of_the_set_up():
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse((_REPO / "terngrad/cc/flags.bzl").read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id in ("FLAGS", "_X86")
    }
    flags_of_file = {f"kernels_{path}.cc": flags for path, flags in constants["_X86"].items()}
    assert tuple(constants["FLAGS"]) == library.FLAGS
    assert {file: tuple(flags) for file, flags in flags_of_file.items() if flags} == (
        build._FLAGS_OF_FILE
    )
