"""Who may import whom, and which functions look private.

Every import counts, also a deferred one and one for annotations only.
"""

import ast
import collections
import graphlib
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from docs.layers import ROW_OF, ROWS, root_of
from terngrad.testing.imports import Import, imports, parse, texts

_REPO = Path(__file__).parent
_ROOTS = ("slim", "terngrad", "inception", "benchmarks", "docs")

_FACE = "terngrad"  # the package itself offers names of its library; its modules are the root
_MAIN = re.compile(r'^if __name__ == "__main__":', re.MULTILINE)


def sources() -> dict[str, str]:
    """Text of every module of the repository, by its name."""
    return texts(_REPO, _ROOTS)


def row_of(module: str) -> int | None:
    """The layer of a module; None for one of another package."""
    name = "terngrad.library" if module == _FACE else module
    while name and name not in ROW_OF:
        name = name.rpartition(".")[0]
    return ROW_OF.get(name)


def is_test(module: str) -> bool:
    """Whether a module is a test, or fixtures of tests."""
    return module.endswith(("_test", "conftest"))


def for_tests(module: str) -> bool:
    """Whether a module is for tests only."""
    return is_test(module) or "testing" in module.split(".")


def layer_rule(found: Import, modules: Mapping[str, str]) -> str:
    """Folders import downwards; the libraries slim and terngrad do not know each other."""
    own, other = row_of(found.module), row_of(found.target)
    if is_test(found.module) or own is None or other is None:
        return ""
    if own < other:
        return f"{' and '.join(ROWS[other])} lies above {' and '.join(ROWS[own])}"
    if {root_of(found.module), root_of(found.target)} == {"slim", "terngrad"}:
        return "slim and terngrad do not import each other"
    return ""


def program_rule(found: Import, modules: Mapping[str, str]) -> str:
    """Nothing imports a program but what is for tests."""
    root = found.target.partition(".")[0]
    is_program = root in ("slim", "inception") and _MAIN.search(modules.get(found.target, ""))
    return "only a test imports a program" if is_program and not for_tests(found.module) else ""


def isolation_rule(found: Import, modules: Mapping[str, str]) -> str:
    """No module imports a test, and a training does not depend on what is for tests only."""
    if found.target in modules and is_test(found.target):
        return "nothing imports a test: shared helpers are in a module named testing"
    if found.target in modules and for_tests(found.target) and not for_tests(found.module):
        return "only tests import what is for tests"
    return ""


def pytest_rule(found: Import, modules: Mapping[str, str]) -> str:
    """Only tests and terngrad/testing import pytest."""
    allowed = is_test(found.module) or found.module.startswith("terngrad.testing")
    is_pytest = found.target.partition(".")[0] in ("pytest", "_pytest")
    return "only tests and terngrad/testing import pytest" if is_pytest and not allowed else ""


_RULES = {rule.__name__: rule for rule in (layer_rule, program_rule, isolation_rule, pytest_rule)}


def violations(rule: str, modules: Mapping[str, str]) -> list[str]:
    """A line for each import that a rule forbids."""
    lines = {
        f"{found.module}:{found.line} imports {found.target}: {why}"
        for found in imports(modules)
        if (why := _RULES[rule](found, modules))
    }
    return sorted(lines)


def circle(modules: Mapping[str, str]) -> list[str]:
    """Modules of which each imports the one before it and the first the last; none if so."""
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for found in imports(modules):
        if found.target in modules and found.target != found.module:
            graph[found.module].add(found.target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def mentioned(text: str) -> set[str]:
    """All names that a module uses or imports, and its texts, which may be names."""
    kinds = {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name", ast.Constant: "value"}
    nodes = (node for node in ast.walk(parse(text)) if type(node) in kinds)
    return {str(getattr(node, kinds[type(node)])).rpartition(".")[2] for node in nodes}


def own_functions(modules: Mapping[str, str]) -> list[str]:
    """Functions with a public name that no other module mentions."""
    names = {module: mentioned(text) for module, text in modules.items()}
    mentions = collections.Counter(name for found in names.values() for name in found)
    return sorted(
        f"{module}.{node.name}"
        for module, text in modules.items()
        for node in parse(text).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        if mentions[node.name] == (node.name in names[module])
        if not node.decorator_list and not for_tests(module)
    )


@pytest.mark.parametrize("rule", _RULES)
def test_every_import_keeps_the_rule(rule):
    found = violations(rule, sources())
    assert not found, "\n" + "\n".join(found)


def test_no_modules_import_each_other_in_a_circle():
    found = circle(sources())
    assert not found, " <- ".join(found)


def test_the_name_of_a_function_of_one_module_begins_with_an_underscore():
    others = texts(_REPO, ("examples", "scripts", "deploy", "bazel"))
    others["setup"] = (_REPO / "setup.py").read_text()
    found = [name for name in own_functions(sources() | others) if name.startswith(_ROOTS)]
    assert not found, f"no other module mentions them: {', '.join(found)}"


def test_a_function_that_only_its_own_module_mentions_is_found():
    modules = {"a": "def f():\n  g()\ndef g(): ...\ndef _h(): ...", "b": "from a import f"}
    assert own_functions(modules | {"a_test": "def test_x(): ..."}) == ["a.g"]


def test_every_layer_exists():
    modules = sources()
    assert [name for name in ROW_OF if name not in modules and name != "docs"] == []


_MAIN_TEXT = '\nif __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    ("rule", "module", "text", "why"),
    [
        ("layer_rule", "terngrad.ops.a", "import terngrad.training.b", "terngrad.training lies"),
        ("layer_rule", "terngrad.ops.a", "def f():\n  from terngrad.codecs import b", "codecs"),
        ("layer_rule", "terngrad.ops.a", "if TYPE_CHECKING:\n  import inception.b", "inception"),
        ("layer_rule", "terngrad.planes", "from terngrad.ops import native", "ops lies above"),
        ("layer_rule", "inception.flags.a", "from ..training import b", "training lies above"),
        ("layer_rule", "slim.nets.a", "from terngrad import planes", "do not import each other"),
        ("layer_rule", "terngrad.a", "import slim.nets", "slim.pretrained_weights lies"),
        ("layer_rule", "slim.nets.a", "from slim import eval_image_classifier", "lies above"),
        ("layer_rule", "inception.a", "from slim import eval_image_classifier", "lies above"),
        ("program_rule", "benchmarks.a", "from inception import program", "only a test"),
        ("isolation_rule", "slim.a_test", "from slim.b_test import c", "nothing imports a test"),
        ("isolation_rule", "inception.a", "from terngrad.testing import b", "only tests import"),
        ("pytest_rule", "inception.a", "import pytest", "only tests and terngrad/testing"),
    ],
)
def test_a_forbidden_import_is_named(rule, module, text, why):
    others = ("terngrad.codecs.b", "terngrad.ops.native", "terngrad.testing.b", "slim.b_test")
    modules = dict.fromkeys((*others, "slim.eval_image_classifier"), "")
    (found,) = violations(rule, modules | {"inception.program": _MAIN_TEXT, module: text})
    assert re.match(rf"{module}:[12] imports \S+: .*{why}", found), found


def test_what_is_allowed_is_not_named():
    modules = {
        "terngrad.training.a": "import numpy\nfrom terngrad.ops import native",
        "slim.eval_image_classifier": f"import terngrad.planes, inception.app{_MAIN_TEXT}",
        "slim.eval_test": "import pytest\nfrom slim import eval_image_classifier",
        "terngrad.testing.a": "import pytest",
    }
    assert [line for rule in _RULES for line in violations(rule, modules)] == []


def test_a_circle_is_found_also_where_an_import_is_deferred():
    modules = {"a": "import b", "b": "import c", "c": "def f():\n  import a", "d": "import a"}
    assert sorted(set(circle(modules))) == ["a", "b", "c"]
