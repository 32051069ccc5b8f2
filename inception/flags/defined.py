"""The flags that a program defines, learned from the program itself before it parses any."""

import contextlib
import functools
import runpy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from inception import app


class _Call(NamedTuple):
    """What a program hands to `app.run`."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def flags_of(program: str) -> flags.FlagValues:
    """Returns the flags of a program, none of them parsed.

    Args:
      program: its module, such as "inception.mnist_train".

    Raises:
      ValueError: there is no such module, or it hands no flags to `app.run`.
    """
    values = flags.FlagValues()
    _call_of(program).args[1](values)
    return values


def positional_of(program: str) -> Sequence[str]:
    """Returns the flags of a program that may be given by their values alone."""
    return _call_of(program).kwargs.get("positional", ())


@functools.cache
def _call_of(program: str) -> _Call:
    with _noting_calls() as calls:
        try:
            runpy.run_module(program, run_name="__main__")
        except ImportError as error:
            raise ValueError(f"there is no program {program} ({error})") from None
        except SystemExit:
            pass  # it parses its arguments itself
    if not calls:
        raise ValueError(f"{program} defines no flags by app.run")
    return calls[0]


@contextlib.contextmanager
def _noting_calls() -> Iterator[list[_Call]]:
    """Lets `app.run` only note its arguments within the block."""
    calls: list[_Call] = []
    run = app.run
    app.run = lambda *args, **kwargs: calls.append(_Call(args, kwargs))
    try:
        yield calls
    finally:
        app.run = run
