"""Dataclass fields that are flags: one line holds name, type, group, default, unit, help and check.

@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(table.Checked):
    batch_size: int = flag("Data", at_least(1), 32, "images in a step", unit="images")

table.define(Config, values)        # before parsing
config = table.read(Config, values)   # after parsing
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from absl import flags

GROUPS = (
    "Data",
    "Training",
    "TernGrad",
    "Runtime",
    "Evaluation",
    "Distributed",
    "Search",
    "Trials",
    "Machines",
)

INT32_MAX = (1 << 31) - 1
MAX_STEPS = 1 << 62  # leaves room in an int64 for what is added to a step
MAX_BATCH = 1 << 24  # images; larger batches make TensorFlow's input end the process
MAX_SIDE = 1 << 16  # pixels; the number of all pixels fits into an int64
MAX_THREADS = 4096  # machines have fewer cores, and may have no memory for more threads

_T = TypeVar("_T")
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a flag takes: `read` turns text into a value, `check` accepts it, `allowed` says it."""

    read: Callable[[str], Any]
    allowed: str
    check: Callable[[Any], bool] = lambda _: True

    def parse(self, argument: Any) -> Any:
        """Returns the value of `argument` (text or a value); ValueError says what is allowed."""
        try:
            value = self.read(argument) if isinstance(argument, str) else argument
            if self.check(value):
                return value
        except (KeyError, ValueError):
            pass
        raise ValueError(f"must be {self.allowed}")


def at_least(low: int, special: int | None = None, high: int = INT32_MAX) -> Kind:
    """Integers in [low, high], and `special` (-1 in most flags with a value for "all" or "as ...").

    What is above `high` would not fit where it is used: TensorFlow would end the process.
    """
    also = "" if special is None else f", or {special}"
    allowed = f"an integer >= {low} and <= {high}{also}"
    return Kind(int, allowed, lambda v: low <= v <= high or v == special)


def number(low: float = 0.0, high: float = math.inf, *, above: bool = False) -> Kind:
    """Finite numbers in [low, high], or in (low, high] with `above`."""
    limits = f"{'>' if above else '>='} {low:g}" + ("" if high == math.inf else f" and <= {high:g}")
    return Kind(
        float,
        f"a number {limits}",
        lambda v: math.isfinite(v) and (v > low if above else v >= low) and v <= high,
    )


def one_of(*choices: Any) -> Kind:
    """One of the choices, all of one type."""
    allowed = ", ".join(map(str, choices[:-1])) + f" or {choices[-1]}"
    return Kind(type(choices[0]), allowed, lambda v: v in choices)


TEXT = Kind(str, "text")
BOOLEAN = Kind(lambda text: _BOOLEANS[text.lower()], "True or False")
NAMES = Kind(
    lambda text: tuple(name.strip() for name in text.split(",") if name.strip()),
    "names separated by commas",
)


@dataclasses.dataclass(frozen=True)
class Flag:
    """The part of a flag that a dataclass field does not hold already."""

    group: str
    kind: Kind
    help: str
    unit: str = ""


def flag(group: str, kind: Kind, default: Any, help: str, unit: str = "") -> Any:
    """Returns a dataclass field that `define` makes a flag of; default None means "not set"."""
    return dataclasses.field(default=default, metadata={"flag": Flag(group, kind, help, unit)})


def table(config_class: type) -> dict[str, Flag]:
    """Returns the flags of a dataclass by name, group by group."""
    fields = dataclasses.fields(config_class)
    entries = ((f.name, f.metadata["flag"]) for f in fields if "flag" in f.metadata)
    return dict(sorted(entries, key=lambda entry: GROUPS.index(entry[1].group)))


class RefusedError(ValueError):
    """A flag cannot take its value.

    Attributes:
      name: name of the flag.
      value: value of the flag.
      why: what is wrong, and what is allowed.
    """

    def __init__(self, name: str, value: Any, why: str) -> None:
        """Words the error as the parser's errors are."""
        text = ",".join(map(str, value)) if isinstance(value, tuple) else value
        super().__init__(f"flag --{name}={text}: {why}")
        self.name, self.value, self.why = name, value, why


def refuse(name: str, value: Any, why: str) -> RefusedError:
    """Returns the error of a value that a flag cannot take."""
    return RefusedError(name, value, why)


def refuse_missing(config: Any, *names: str) -> None:
    """Raises RefusedError if a flag names a file or folder that does not exist; "" and None do not.

    It is not part of the kind: a command can be checked on a machine that does not have its files.
    """
    for name in names:
        if path := getattr(config, name):
            try:
                os.stat(path)
            except OSError as error:
                raise refuse(name, path, f"cannot be read ({error.strerror})") from None


@contextlib.contextmanager
def naming(name: str, value: Any) -> Iterator[None]:
    """Adds the flag at fault to a ValueError of the block."""
    try:
        yield
    except ValueError as error:
        raise refuse(name, value, str(error).removeprefix(f"{value} ")) from None


class Checked:
    """Base of a config dataclass: each field that is a flag is checked, however it was set."""

    def __post_init__(self) -> None:
        for name, entry in table(type(self)).items():
            value = getattr(self, name)
            if value is not None and not entry.kind.check(value):
                raise refuse(name, value, f"must be {entry.kind.allowed}")


class Parser(flags.ArgumentParser):
    """Parses the text of a flag.

    Attributes:
      kind: what the flag takes.
    """

    def __init__(self, kind: Kind):
        super().__init__()
        self.kind = kind

    def parse(self, argument: Any) -> Any:
        """Returns the value; see `Kind.parse`."""
        return self.kind.parse(argument)


def define(
    config_class: type,
    values: flags.FlagValues,
    shown: Mapping[str, str] = MappingProxyType({}),
    **defaults: Any,
) -> None:
    """Defines the flags of a dataclass; `defaults` replaces the defaults of its fields.

    Args:
      config_class: the dataclass.
      values: gets the flags.
      shown: by name of the flag, what its help says of a default that is found later.
      defaults: by name of the flag; None = found later, or not set.
    """
    fields = {f.name: f.default for f in dataclasses.fields(config_class)} | defaults
    for name, entry in table(config_class).items():
        define_one(name, entry, fields[name], values, shown.get(name, ""))


def define_one(
    name: str, entry: Flag, default: Any, values: flags.FlagValues, shown: str = ""
) -> None:
    """Defines one flag; its help ends with default and unit, or with `shown` in their place."""
    help_text = f"{entry.help} [{shown or _show(default, entry.unit)}]"
    boolean = entry.kind is BOOLEAN
    new = flags.Flag(Parser(entry.kind), None, name, default, help_text, boolean=boolean)
    flags.DEFINE_flag(new, values, module_name=entry.group)


def _show(default: Any, unit: str) -> str:
    if default in (None, "", (), -1):
        return ("-1" if default == -1 else "not set") + (f"; {unit}" if unit else "")
    return f"{default} {unit}".rstrip()


def read(config_class: type[_T], values: flags.FlagValues, **others: Any) -> _T:
    """Returns the dataclass with the parsed flags; `others` sets the fields that are no flags."""
    return config_class(**{name: values[name].value for name in table(config_class)}, **others)
