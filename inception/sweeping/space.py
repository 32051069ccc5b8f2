"""The values among which a sweep chooses: "initial_learning_rate=0.1,0.01 clip_factor=1..4".

A name has a list of values (a,b,c) or, if the flag takes numbers, a range (low..high, or
low..high:log). The values of a range are whole numbers if the flag takes whole numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from absl import flags
from absl.flags import FlagValues

from inception.flags.table import Parser, refuse

_NUMBERS = {flags.IntegerParser: int, flags.FloatParser: float}  # of a program's own flags

Point = Mapping[str, str]  # name -> the text of its value


@dataclasses.dataclass(frozen=True)
class Choices:
    """The texts of some values."""

    texts: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(self.texts)

    @property
    def limits(self) -> tuple[str, ...]:
        """The texts that have to be checked: all of them."""
        return self.texts


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both included; evenly spread by their logarithms if `log`.

    Whole numbers if `low` and `high` are of type int.
    """

    low: float
    high: float
    log: bool

    def __str__(self) -> str:
        return f"{self.low}..{self.high}{':log' * self.log}"

    @property
    def limits(self) -> tuple[str, ...]:
        """The texts that have to be checked: the ends."""
        return (repr(self.low), repr(self.high))


Space = Mapping[str, Choices | Range]


def read(text: str, values: FlagValues, flag: str) -> Space:
    """Reads a space.

    Args:
      text: as the module's docstring says; spaces stand between the names.
      values: the flags that the names are of.
      flag: the flag that holds the text, for errors.

    Raises:
      ValueError: the text cannot be read, or the program has no such flag or refuses a value.
    """
    space: dict[str, Choices | Range] = {}
    for word in text.split():
        name, equals, given = word.partition("=")
        name = name.removeprefix("--")
        if not equals or not given:
            raise refuse(flag, text, f"'{word}' must be NAME=VALUE,VALUE or NAME=LOW..HIGH")
        if name in space:
            raise refuse(flag, text, f"{name} appears twice")
        if name not in values:
            raise refuse(flag, text, f"the program has no flag --{name}")
        space[name] = _values(given, name, values)
        for limit in space[name].limits:
            _check(name, limit, values)
    if not space:
        raise refuse(flag, text, "must name a flag and its values, as in batch_size=32,64")
    return space


def _values(given: str, name: str, values: FlagValues) -> Choices | Range:
    bounds, _, scale = given.partition(":")
    low, dots, high = bounds.partition("..")
    parser = values[name].parser
    number = parser.kind.read if isinstance(parser, Parser) else _NUMBERS.get(type(parser))
    if not dots or number not in (int, float):  # a text, such as ../a, may have dots
        texts = tuple(given.split(","))
        if len(set(texts)) < len(texts):
            raise refuse(name, given, "a value appears twice")
        return Choices(texts)
    if scale not in ("", "log"):
        raise refuse(name, given, "a range is LOW..HIGH or LOW..HIGH:log")
    try:
        found = Range(number(low), number(high), scale == "log")
    except ValueError:
        kind = "whole numbers" if number is int else "numbers"
        raise refuse(name, given, f"the ends of a range must be {kind}") from None
    if not found.low < found.high or (found.log and found.low <= 0):
        limit = "0 < LOW < HIGH" if found.log else "LOW < HIGH"
        raise refuse(name, given, f"a range LOW..HIGH{':log' * found.log} needs {limit}")
    return found


def _check(name: str, text: str, values: FlagValues) -> None:
    try:
        values[name].parser.parse(text)
    except ValueError as error:
        raise refuse(name, text, str(error)) from None


def combinations(space: Space) -> Iterator[Point]:
    """Yields all points of a space that has no ranges; the last name changes fastest."""
    lists = [choices.texts for choices in space.values()]
    return (dict(zip(space, texts, strict=True)) for texts in itertools.product(*lists))


def ranges(space: Space) -> list[str]:
    """Returns the names that have a range."""
    return [name for name, values in space.items() if isinstance(values, Range)]


def arguments(point: Point) -> Sequence[str]:
    """Returns the flags that choose a point."""
    return [f"--{name}={text}" for name, text in point.items()]
