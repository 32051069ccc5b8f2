"""Sphinx' configuration: the guides, and a reference of the public names from their docstrings.

The source folder is the repository, so that the links of the guides to other folders hold.
"""

import re
from collections.abc import Callable
from typing import Protocol

import terngrad

project = "Ternary gradients for TensorFlow"
author = "The TernGrad authors"
version = release = terngrad.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "benchmarks/results/*.md"]
exclude_patterns = [".*", "bazel-*", "build"]

html_theme = "alabaster"
html_title = project
html_theme_options = {"fixed_sidebar": True, "page_width": "1120px", "body_max_width": "auto"}
html_extra_path = ["site"]  # index.html, which leads to the root document
html_show_sourcelink = False
html_show_copyright = False
smartquotes = False  # would join the two hyphens of a flag into a dash

myst_heading_anchors = 4  # links name headings as GitHub does
default_role = "py:obj"  # `name` in a docstring is code, and a link where the reference has it
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False

# A class of this repository in a signature must be in the reference. A build without a network
# cannot ask for those of other packages; type variables and what callers never name have no entry.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!(terngrad|slim|inception)\.).*"),
    ("py:class", r".*\.(Data|Optimizer)"),
    ("py:class", r"terngrad\.ops\.packing\..*|slim\.nets\.net_builder\.WeightDecay"),
    ("py:class", r"terngrad\.ops\.gradient_kernels\.(Update|Averages)"),
    ("py:class", r"terngrad\.exchange\.exchange\.Owner"),
]

_COLON = "\ue000"  # stands for a colon that Napoleon must not see; private to this file


class _App(Protocol):
    """The part of Sphinx that this file uses."""

    def connect(self, event: str, callback: Callable[..., object], priority: int = 500) -> int:
        """Calls back at an event, the lower priorities first."""


def setup(app: _App) -> None:
    """Sphinx calls it; Napoleon's own callback has the priority 500."""
    app.connect("autodoc-skip-member", _is_a_field)
    app.connect("autodoc-process-docstring", _before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=600)


def _is_a_field(app: object, what: str, name: str, value: object, *rest: object) -> bool | None:
    """Leaves out the fields of a NamedTuple, which its docstring describes; None = as usual."""
    return True if str(value.__doc__).startswith("Alias for field number") else None


def _before_napoleon(
    app: object, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Hides colons where Napoleon would take the text before one for a type."""
    for i, line in enumerate(lines):
        is_first = i == 0 and what in ("property", "attribute")
        if is_first or (i and lines[i - 1].strip() in ("Returns:", "Yields:")):
            lines[i] = line.replace(":", _COLON)


def _after_napoleon(
    app: object, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Restores the colons, and marks up what Sphinx would misread.

    Indented lines of a module's text are code, `Class.name` may be of any module, and |x| is no
    substitution.
    """
    text = "\n".join(lines).replace(_COLON, ":")
    if what == "module":
        text = re.sub(r"\n\n(?=    )", "\n\n::\n\n", text)
    text = re.sub(r"(?<!`)`([A-Z]\w+(?:\.\w+)*)`(?!`)", r"`.\1`", text)
    lines[:] = re.sub(r"\|([^|\s]+)\|", r"\\|\1\\|", text).split("\n")
