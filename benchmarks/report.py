"""Figures as tables, pictures and JSON, with the conditions of the measurement."""

import dataclasses
import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib.figure
import numpy as np
import rich.box
import rich.console
import rich.table
import tensorflow as tf

from benchmarks.timing import Comparison, Options
from inception.flags import table
from inception.results import pictures
from slim.datasets import files


def print_comparison(comparison: Comparison) -> None:
    """Prints median and quartiles of each side, then the ratios, as Markdown."""
    table = rich.table.Table("side", title=comparison.title, box=rich.box.MARKDOWN)
    for heading in ("ms/step", "quartiles", "CPU ms/step"):
        table.add_column(heading, justify="right")
    times = comparison.times
    for side, values in times.wall.items():
        low, median, high = _quartiles(values)
        cpu = np.median(times.cpu[side])
        table.add_row(side, f"{median:.1f}", f"{low:.1f} to {high:.1f}", f"{cpu:.1f}")
    console = rich.console.Console(width=100)
    console.print(table)
    for name, value in comparison.ratios.items():
        console.print(f"- {name}: {value:.3f}")


def finish(comparisons: Sequence[Comparison], options: Options) -> None:
    """Prints the conditions and writes the files that the options name."""
    threads = f"intra-op {options.num_intra_threads}, inter-op {options.num_inter_threads}"
    circumstances = environment() | {
        "threads": f"{threads} (0 = TensorFlow's choice)",
        "deterministic": options.deterministic,
    }
    found = [dataclasses.asdict(comparison) for comparison in comparisons]
    conclude(circumstances, {"comparisons": found}, options.json)
    if options.png:
        draw(comparisons, options.png)


def draw(comparisons: Sequence[Comparison], path: str) -> None:
    """Draws the medians as bars, with whiskers from quartile to quartile, into a PNG file."""
    figure = matplotlib.figure.Figure(figsize=(5 * len(comparisons), 3), layout="constrained")
    for axes, comparison in zip(
        figure.subplots(1, len(comparisons), squeeze=False)[0], comparisons, strict=True
    ):
        times = comparison.times.wall
        low, median, high = np.transpose([_quartiles(values) for values in times.values()])
        bars = axes.barh(list(times), median, xerr=[median - low, high - median])
        axes.bar_label(bars, fmt="%.0f", label_type="center", color="white")
        axes.invert_yaxis()
        axes.set(title=comparison.title, xlabel="ms per step")
    pictures.save(figure, path)


def new_folders(output_dir: str, names: Iterable[str]) -> dict[str, str]:
    """Returns the path of each run's folder.

    Raises:
      ValueError: a folder already exists; the message names the flag --output_dir.
    """
    folders = {name: os.path.join(output_dir, name) for name in names}
    for folder in folders.values():
        if os.path.exists(folder):
            raise table.refuse("output_dir", output_dir, f"{folder} already exists")
    return folders


def conclude(circumstances: Mapping, found: Mapping, path: str) -> None:
    """Prints the conditions and, if `path` is set, writes them and the figures to a file."""
    print_lines(circumstances)
    if path:
        write_json(path, {"environment": circumstances, **found})


def print_lines(figures: Mapping) -> None:
    """Prints each figure as a line of Markdown."""
    for name, value in figures.items():
        print(f"- {name}: {value}")


def environment() -> dict[str, str | float]:
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


def _quartiles(values: Sequence[float]) -> np.ndarray:
    return np.percentile(values, [25, 50, 75])


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
