"""Leaves out the tracebacks of Ctrl-C in a program that is still loading its modules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

_BEGIN = "Traceback (most recent call last):"
_LINKS = ("During handling of the above exception", "The above exception was the direct cause")
_CTRL_C = "KeyboardInterrupt"


def without_stopped_imports(
    lines: Iterable[str], was_stopped: Callable[[], bool], leave_out: Callable[[], None]
) -> Iterator[str]:
    """Yields the output of a program without the traceback with which Ctrl-C ended its imports.

    Other lines pass at once. So do tracebacks, when they are whole. Only one that an import's end
    by Ctrl-C begins waits for the next line: where there is one, the program goes on, and all of
    it was meant to be read.

    Args:
      lines: the program's output.
      was_stopped: whether the program was sent SIGINT; before that, every line passes at once.
      leave_out: called if a traceback was left out.
    """
    held: list[str] = []
    for line in lines:
        if not held and not (line.startswith(_BEGIN) and was_stopped()):
            yield line
            continue
        held.append(line)
        if not _may_end_an_import(held):
            yield from held
            held.clear()
    if _CTRL_C in map(str.strip, held):
        leave_out()
    else:
        yield from held


def _may_end_an_import(lines: Sequence[str]) -> bool:
    """Whether lines are, or begin, such a traceback and those of errors that followed it."""
    is_within, tracebacks = False, 0
    for i, line in enumerate(lines):
        if line.startswith(_BEGIN):
            is_within = True
        elif not line.strip() or line.startswith(_LINKS) or (is_within and line.startswith(" ")):
            continue
        elif not is_within:
            return False
        else:
            is_within = False
            tracebacks += 1
            if tracebacks == 1 and not (line.strip() == _CTRL_C and _has_import(lines[:i])):
                return False
    return True


def _has_import(traceback: Sequence[str]) -> bool:
    """Whether a module below the program's own one was being loaded.

    Python leaves its own frames out between a module and one that it imports. Other programs that
    run a program, such as profilers, have frames of functions there.
    """
    frames = [line.rstrip() for line in traceback if line.startswith('  File "')]
    pairs = itertools.pairwise(frames)
    imports = any(all(each.endswith(", in <module>") for each in pair) for pair in pairs)
    return imports or any('File "<frozen importlib.' in line for line in frames)
