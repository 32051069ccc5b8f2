"""Shared by the programs: their flags, and figures as tables, pictures and JSON."""

import contextlib
import dataclasses
import datetime
import functools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import matplotlib.axes
import matplotlib.figure
import numpy as np
import rich.box
import rich.console
import rich.table
import tensorflow as tf
from absl import flags

from inception import app
from inception.flags import table
from inception.flags.table import NAMES, TEXT, Kind, flag
from inception.results import report
from slim.datasets import files

_PANELS_IN_A_ROW = 4
_FILES = ("json", "png")  # flags of files that are written at the end

_Options = TypeVar("_Options", bound=table.Checked)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(table.Checked):
    """The flag of each program."""

    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureOptions(Options):
    """The flags of a program that draws its figures."""

    png: str = flag("Runtime", TEXT, "", "PNG file for a picture of the figures")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MnistOptions(PictureOptions):
    """The flags of a program that trains on MNIST."""

    data_dir: str = flag("Data", TEXT, "/tmp/mydata", "folder of MNIST's record files")
    output_dir: str = flag("Training", TEXT, "results", "folder for the runs; they must be new")

    def new_folders(self, names: Iterable[str]) -> dict[str, str]:
        """Returns the path of each run's folder.

        Raises:
          ValueError: a folder already exists; the message names the flag --output_dir.
        """
        folders = {name: os.path.join(self.output_dir, name) for name in names}
        for folder in folders.values():
            if os.path.exists(folder):
                raise table.refuse("output_dir", self.output_dir, f"{folder} already exists")
        return folders


def names_flag(
    group: str, choices: Sequence[str], help: str, default: Sequence[str] | None = None
) -> Any:
    """Returns a flag of names, each of which is one of the choices; by default all."""
    allowed = f"one or more of {', '.join(choices)}, separated by commas"
    kind = Kind(NAMES.read, allowed, lambda names: set(names) <= set(choices))
    return flag(group, kind, tuple(choices if default is None else default), f"{help}: {allowed}")


def quarters(samples: Sequence[float]) -> list[float]:
    """Returns the mean of each quarter of evenly spaced samples."""
    return [round(float(np.mean(part)), 1) for part in np.array_split(samples, 4) if part.size]


def counts(high: int | None = None, low: int = 1) -> Kind:
    """Integers >= `low`, and <= `high` if that is set, separated by commas."""
    limits = f">= {low}" if high is None else f"from {low} to {high}"
    good = lambda n: n >= low and (high is None or n <= high)
    return Kind(
        lambda text: tuple(map(int, text.split(","))),
        f"integers {limits}, separated by commas",
        lambda numbers: bool(numbers) and all(map(good, numbers)),
    )


def run(main: Callable[[_Options], None], kind: type[_Options]) -> None:
    """Runs a program whose flags are the fields of a dataclass."""

    def checked(values: flags.FlagValues) -> None:
        options = table.read(kind, values)
        for name in _FILES:
            if path := getattr(options, name, ""):
                _check_writable(name, path)
        main(options)

    app.run(
        checked,
        functools.partial(table.define, kind),
        description=main.__globals__["__doc__"],
    )


def _check_writable(flag: str, path: str) -> None:
    """Makes a file's folder; raises ValueError, which names the flag, if none can be written there.

    Otherwise hours of measuring would be lost at the end.
    """
    folder = os.path.dirname(path) or "."
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise table.refuse(flag, path, f"{folder} is not writable ({error.strerror})") from None
    if os.path.isdir(path):
        raise table.refuse(flag, path, "is a folder; it must be a file")


def module(name: str) -> list[str]:
    """Returns the command that runs a module with one thread within an operation."""
    return [sys.executable, "-m", name, "--num_intra_threads=1", "--num_inter_threads=2"]


def shared_flags(options: table.Checked, kind: type) -> list[str]:
    """Returns the flags of a dataclass with the values that `options` has of the same name."""
    values = {name: getattr(options, name) for name in table.table(kind)}
    text = lambda value: ",".join(map(str, value)) if isinstance(value, tuple) else value
    return [f"--{name}={text(value)}" for name, value in values.items()]


def print_table(rows: Sequence[Mapping[str, object]], title: str = "", texts: int = 1) -> None:
    """Prints a table as Markdown.

    Args:
      rows: the cells by the names of their columns; a row may lack some.
      title: of the table.
      texts: number of columns, the first ones, that hold no numbers.
    """
    shown = rich.table.Table(title=title or None, box=rich.box.MARKDOWN)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    for i, column in enumerate(columns):
        shown.add_column(column, justify="left" if i < texts else "right")
    for row in rows:
        shown.add_row(*(str(row.get(column, "")) for column in columns))
    rich.console.Console(width=220, markup=False, emoji=False).print(shown)


def print_lines(figures: Mapping) -> None:
    """Prints each figure as a line of Markdown."""
    for name, value in figures.items():
        print(f"- {name}: {value:.3f}" if isinstance(value, float) else f"- {name}: {value}")


def _quartiles(values: Sequence[float]) -> np.ndarray:
    """Returns the first quartile, the median and the third one."""
    return np.percentile(values, [25, 50, 75])


def summary(name: str, values: Sequence[float]) -> dict[str, str]:
    """Returns the cells of a table with the median and the quartiles."""
    low, median, high = _quartiles(values)
    return {name: f"{median:.1f}", "quartiles": f"{low:.1f} to {high:.1f}"}


@contextlib.contextmanager
def picture(
    path: str, panels: int = 1, width: float = 6.0, height: float = 4.0
) -> Iterator[list[matplotlib.axes.Axes]]:
    """Yields the axes of some panels of this size, and then saves them as a PNG file."""
    columns = min(panels, _PANELS_IN_A_ROW)
    rows = -(-panels // columns)
    figure = matplotlib.figure.Figure((width * columns, height * rows), layout="constrained")
    yield list(figure.subplots(rows, columns, squeeze=False).flat)
    report.save(figure, path)


def draw_bars(path: str, panels: Mapping[str, Mapping[str, Sequence[float]]], xlabel: str) -> None:
    """Draws the medians of each panel's samples, with whiskers from quartile to quartile.

    Args:
      path: a PNG file; not set = draws nothing.
      panels: by title: samples by the names of the bars.
      xlabel: what the samples are.
    """
    if not path:
        return
    height = 1.0 + 0.25 * max(map(len, panels.values()))
    with picture(path, len(panels), height=height) as every:
        for axes, (title, samples) in zip(every, panels.items(), strict=False):
            low, median, high = np.transpose([_quartiles(each) for each in samples.values()])
            bars = axes.barh(list(samples), median, xerr=[median - low, high - median])
            axes.bar_label(bars, fmt="%.3g", padding=2)
            axes.invert_yaxis()
            axes.margins(x=0.2)
            axes.set(title=title, xlabel=xlabel)


def conclude(options: Options, figures: Mapping, **conditions: object) -> None:
    """Prints the conditions; writes them and the figures to a file if the flag is set."""
    conditions = environment() | conditions
    print_lines(conditions)
    if options.json:
        write_json(options.json, {"environment": conditions, **figures})


def environment() -> dict[str, object]:
    """Returns date, commit, processor, TensorFlow's version, and the load of the last minute."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "tensorflow": tf.__version__,
        "load": round(os.getloadavg()[0], 2),
    }


def write_json(path: str, content: Mapping) -> None:
    """Writes `content`; replaces an existing file only when the new one is complete."""
    with files.replacing_text(path) as file:
        json.dump(content, file, indent=1)


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return named[1] if named else platform.processor()
