"""Does a training lose anything when its processes are killed again and again?

Trains LeNet on MNIST with workers and a parameter server on this machine. Kills one of them every
minute, in turn, and lets the launcher restart it. At the end all processes save; a second training
makes the same number of steps undisturbed, and the parameters are compared bit for bit. The last
worker is never killed: it shows whether memory grows.

python -m benchmarks.soak --data_dir=DIR --output_dir=DIR --json=figures.json --png=figure.png
"""

import dataclasses
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time

import matplotlib.figure
import numpy as np
import tensorflow as tf
from absl.flags import FlagValues

from benchmarks import report
from benchmarks.processes import cluster_members, resident_mb
from inception import app
from inception.flags import table
from inception.flags.table import TEXT, at_least, flag, number
from inception.results import pictures
from inception.training.evaluate import measure_checkpoints
from terngrad.training import checkpoints

_LOOK_SECS = 5.0
_END_SECS = 300.0
_MINUTE = 60.0
_RESTARTS = 10_000
_ENDLESS = 100_000_000  # steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    data_dir: str = flag("Data", TEXT, "/tmp/mydata", "folder of MNIST's record files")
    output_dir: str = flag("Training", TEXT, "results", "folder for the runs; they must be new")
    workers: int = flag(
        "Distributed", at_least(2), 3, "number of workers; the last is never killed", "workers"
    )
    batch_size: int = flag("Training", at_least(1), 32, "images per worker and step", "images")
    minutes: float = flag(
        "Runtime", number(above=True), 30.0, "length of the disturbed run", "minutes"
    )
    every_secs: float = flag(
        "Runtime", number(above=True), 60.0, "time between two kills", "seconds"
    )
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")
    png: str = flag("Runtime", TEXT, "", "PNG file for a picture of the figures")


@dataclasses.dataclass
class _Watch:
    """Observations of a disturbed run.

    Attributes:
      kills: seconds since the start, and the killed process.
      memory: seconds, process, and megabytes.
      lines: the lines of all processes.
    """

    kills: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    memory: list[tuple[float, str, float]] = dataclasses.field(default_factory=list)
    lines: list[str] = dataclasses.field(default_factory=list)


def main(values: FlagValues) -> None:
    """Disturbs a training, compares it with a calm one, and reports."""
    options = table.read(_Options, values)
    disturbed, calm = report.new_folders(options.output_dir, ("disturbed", "calm")).values()
    watch = _disturb(options, disturbed)
    if not (last := checkpoints.latest_checkpoint(disturbed)):
        raise ValueError(f"{disturbed}: the training wrote no checkpoint; see its lines above.")
    steps = checkpoints.step_of(last)
    print(f"{len(watch.kills)} kills, {steps} steps; now the same undisturbed", flush=True)
    subprocess.run([*_launch(options, 0), *_flags(options, calm, steps)], check=True)
    figures = _figures(options, watch, steps, (disturbed, calm))
    circumstances = report.environment()
    report.print_lines(circumstances | figures)
    if options.json:
        found = {"figures": figures, "kills": watch.kills, "memory_mb": watch.memory}
        report.write_json(options.json, {"environment": circumstances} | found)
    if options.png:
        _draw(watch, options.png)


def _launch(options: _Options, restarts: int) -> list[str]:
    command = [sys.executable, "-u", "-m", "inception.launch", f"--max_restarts={restarts}"]
    return [*command, "--ps=1", str(options.workers), "inception.mnist_distributed_train"]


def _flags(options: _Options, folder: str, steps: int) -> list[str]:
    return [
        "--net=lenet",
        f"--data_dir={options.data_dir}",
        f"--train_dir={folder}",
        f"--batch_size={options.batch_size}",
        f"--max_steps={steps}",
        "--save_interval_secs=120",
        "--grad_bits=1",
        "--clip_factor=2.5",
        "--num_intra_threads=1",
        "--num_inter_threads=2",
    ]


def _disturb(options: _Options, folder: str) -> _Watch:
    """Runs the training for `minutes` and kills its processes in turn."""
    watch = _Watch()
    launcher = subprocess.Popen(
        [*_launch(options, _RESTARTS), *_flags(options, folder, _ENDLESS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    reader = threading.Thread(target=_read, args=(launcher, watch), daemon=True)
    reader.start()
    try:
        _kill_in_turn(options, folder, watch)
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(_END_SECS)
    finally:
        launcher.kill()
        reader.join(_LOOK_SECS)
    return watch


def _read(launcher: subprocess.Popen, watch: _Watch) -> None:
    for line in launcher.stdout:
        watch.lines.append(line.rstrip())
        if " step " not in line or " train from step" in line:
            print(line, end="", flush=True)


def _kill_in_turn(options: _Options, folder: str, watch: _Watch) -> None:
    victims = [*(str(i) for i in range(options.workers - 1)), "ps 0"]
    start = time.monotonic()
    elapsed = lambda: time.monotonic() - start
    end, due = _MINUTE * options.minutes, options.every_secs
    while elapsed() < end:
        time.sleep(min(_LOOK_SECS, options.every_secs))
        now, members = elapsed(), cluster_members(folder)
        for name, process in members.items():
            if megabytes := resident_mb(process):
                watch.memory.append((now, name, megabytes))
        victim = victims[len(watch.kills) % len(victims)]
        # No kills in the last `every_secs`: all processes must run when they are asked to save.
        if due <= now < end - options.every_secs and victim in members:
            os.kill(members[victim], signal.SIGKILL)
            watch.kills.append((now, victim))
            due += options.every_secs


def _figures(
    options: _Options, watch: _Watch, steps: int, folders: tuple[str, str]
) -> dict[str, object]:
    disturbed, calm = (_weights(folder) for folder in folders)
    differing = [name for name in calm if not np.array_equal(calm[name], disturbed[name])]
    last = [checkpoints.latest_checkpoint(folder) for folder in folders]
    found = measure_checkpoints(last, net="lenet", dataset_name="mnist", data_dir=options.data_dir)
    precision = {
        os.path.basename(folder): metrics.precision_at_1
        for folder, metrics in zip(folders, found, strict=True)
    }
    views = [line for line in watch.lines if re.search(r" train from step \d+ on", line)]
    return {
        "minutes": options.minutes,
        "kills": len(watch.kills),
        "killed": {name: sum(n == name for _, n in watch.kills) for _, name in watch.kills},
        "views": len(views),
        "steps": steps,
        "variables that differ from the undisturbed run": len(differing),
        "precision @ 1": precision,
        "memory of the worker that was never killed, MB, by quarter": _quarters(watch, options),
    }


def _weights(folder: str) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(checkpoints.latest_checkpoint(folder))
    kinds = ("variables", "averages", "slots")
    names = [n for n in reader.get_variable_to_shape_map() if any(kind in n for kind in kinds)]
    return {name: reader.get_tensor(name) for name in sorted(names)}


def _quarters(watch: _Watch, options: _Options) -> list[float]:
    """Returns the mean memory in each quarter of the run; samples are evenly spaced."""
    name = str(options.workers - 1)
    seen = [megabytes for _, who, megabytes in watch.memory if who == name]
    return [round(float(np.mean(part)), 1) for part in np.array_split(seen, 4) if part.size]


def _draw(watch: _Watch, path: str) -> None:
    figure = matplotlib.figure.Figure((8, 4), layout="constrained")
    axes = figure.subplots()
    for name in sorted({who for _, who, _ in watch.memory}):
        points = [(at / _MINUTE, megabytes) for at, who, megabytes in watch.memory if who == name]
        axes.plot(*zip(*points, strict=True), ".", markersize=3, label=name)
    for at, _ in watch.kills:
        axes.axvline(at / _MINUTE, color="lightgrey", zorder=0)
    axes.set(xlabel="minutes; grey: a process is killed", ylabel="resident memory, MB", ylim=0)
    axes.legend()
    pictures.save(figure, path)


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
