"""Which module imports which: deferred imports count, and those for annotations."""

import ast
import functools
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

parse = functools.cache(ast.parse)  # callers look at the same modules several times


class Import(NamedTuple):
    """An import of a module of this repository or of a package."""

    module: str
    line: int
    target: str


def texts(repository: Path, folders: Iterable[str]) -> dict[str, str]:
    """Text of every module in some folders of the repository, by its name."""
    paths = [path for folder in folders for path in (repository / folder).rglob("*.py")]
    names = (".".join(path.relative_to(repository).with_suffix("").parts) for path in paths)
    return {
        name.removesuffix(".__init__"): path.read_text()
        for name, path in zip(names, paths, strict=True)
    }


def imports(modules: Mapping[str, str]) -> Iterator[Import]:
    """All imports of some modules, given as texts by name."""
    for module, text in modules.items():
        for node in ast.walk(parse(text)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(module, node.lineno, alias.name)
            elif isinstance(node, ast.ImportFrom):
                relative = "." * node.level + (node.module or "")
                package = importlib.util.resolve_name(relative, module.rpartition(".")[0])
                for alias in node.names:
                    name = f"{package}.{alias.name}"
                    yield Import(module, node.lineno, name if name in modules else package)
