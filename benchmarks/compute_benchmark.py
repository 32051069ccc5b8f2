"""How fast does TensorFlow compute a step, in which operations, and which settings change that?

Each setting has a process of its own with one thread per operation, and the processes take turns.
If --torch_python names an interpreter that has torch, PyTorch takes turns with them. CPU times
compare the settings; other load hardly changes them.

python -m benchmarks.compute_benchmark --torch_python=DIR/bin/python --json=figures.json
python -m benchmarks.compute_benchmark --nets=vgg_16 --batch_size=2 --steps=1 --settings=no_onednn
"""

import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import rich.box
import rich.console
import rich.table
from absl.flags import FlagValues

from benchmarks import report
from benchmarks.choices import some_of
from inception import app
from inception.flags import table
from inception.flags.table import TEXT, at_least, flag
from slim.nets import catalog
from terngrad import allocator

_DATASETS = {1: "mnist", 3: "cifar10"}  # by channels, of nets for small images
_SMALL = 32  # pixels
_THREADS = ("--num_intra_threads=1", "--num_inter_threads=2")
_TORCH = str(Path(__file__).with_name("compute_torch.py"))
_TORCH_NETS = ("lenet_slim", "alexnet_v2", "vgg_16", "resnet_v1_50")  # of ddp_nets.py


class _Setting(NamedTuple):
    """What a setting adds to the environment and the flags of compute_worker.py."""

    environment: Mapping[str, str] = {}
    flags: Sequence[str] = ()


_PROGRAMS, _TORCH_AVX2 = "programs", "torch_avx2"  # the first is as in the training programs
_AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
_SETTINGS = {
    _PROGRAMS: _Setting(),
    "no_onednn": _Setting({"TF_ENABLE_ONEDNN_OPTS": "0"}),
    "avx2": _Setting(_AVX2),
    "system_allocator": _Setting({"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}),
    "keep_primitives": _Setting({"TF_MKL_OPTIMIZE_PRIMITIVE_MEMUSE": "0"}),
    "no_primitive_cache": _Setting({"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0"}),
    "caller_thread": _Setting({"TF_ONEDNN_THREADPOOL_USE_CALLER_THREAD": "1"}),
    "one_operation": _Setting(flags=["--num_inter_threads=1"]),
    "not_deterministic": _Setting(flags=["--nodeterministic"]),
    "arithmetic": _Setting(flags=["--on=arithmetic_optimization"]),
    "no_remapping": _Setting(flags=["--off=remapping"]),
    "no_layout": _Setting(flags=["--off=layout_optimizer"]),
    "no_grappler": _Setting(flags=["--on=disable_meta_optimizer"]),
    "xla": _Setting({"TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"}),
    "bfloat16": _Setting(flags=["--on=auto_mixed_precision_onednn_bfloat16"]),
    "torch": _Setting(),
    _TORCH_AVX2: _Setting({"ATEN_CPU_CAPABILITY": "avx2", **_AVX2}),
}
_PROFILED = (_PROGRAMS, "torch")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    nets: tuple[str, ...] = flag("Training", some_of(*catalog.NETS), ("lenet_slim",), "nets")
    batch_size: int = flag("Training", at_least(1), 32, "images in a step", "images")
    settings: tuple[str, ...] = flag(
        "Runtime", some_of(*_SETTINGS), tuple(_SETTINGS), "settings to compare with programs"
    )
    steps: int = flag("Runtime", at_least(1), 10, "steps per round", "steps")
    rounds: int = flag("Runtime", at_least(1), 7, "rounds for each setting")
    torch_python: str = flag("Runtime", TEXT, "", "interpreter with torch; not set = no PyTorch")
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")


def main(values: FlagValues) -> None:
    """Measures each net."""
    options = table.read(_Options, values)
    nets = []
    for net in options.nets:
        nets.append(_measure(net, options))
        _print(nets[-1])
    circumstances = report.environment() | {"images": options.batch_size}
    report.conclude(circumstances, {"nets": nets}, options.json)


def _measure(net: str, options: _Options) -> dict:
    with contextlib.ExitStack() as stack:
        commands = _commands(net, options)
        sides = {s: stack.enter_context(_started(s, c)) for s, c in commands.items()}
        cells = {setting: [] for setting in sides}
        for i in range(options.rounds):
            for setting in list(sides)[:: -1 if i % 2 else 1]:
                cells[setting].append(_answer(sides[setting], "times", options.steps))
        profiled = [setting for setting in _PROFILED if setting in sides]
        profiles = {s: _answer(sides[s], "profile", options.steps) for s in profiled}
    return {"net": net, "settings": cells, "profiles": profiles}


def _commands(net: str, options: _Options) -> dict[str, list[str]]:
    """Returns the command of each setting."""
    spec = catalog.get_spec(net)
    dataset = _DATASETS[spec.channels] if spec.image_size <= _SMALL else "imagenet"
    common = [f"--net={net}", f"--batch_size={options.batch_size}"]
    worker = [sys.executable, "-m", "benchmarks.compute_worker", f"--dataset={dataset}", *_THREADS]
    commands = {}
    for setting in dict.fromkeys((_PROGRAMS, *options.settings)):
        if setting not in ("torch", _TORCH_AVX2):
            commands[setting] = [*worker, *common, *_SETTINGS[setting].flags]
        elif options.torch_python and net in _TORCH_NETS:
            commands[setting] = [options.torch_python, _TORCH, *common]
    return commands


@contextlib.contextmanager
def _started(setting: str, command: Sequence[str]) -> Iterator[subprocess.Popen]:
    """Starts a worker that has made its first steps; at the end it ends with its stdin."""
    environment = os.environ | _SETTINGS[setting].environment
    if not setting.startswith("torch"):
        environment = allocator.with_huge_pages(environment)  # as the programs have
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        _read(process)
        yield process


def _answer(process: subprocess.Popen, kind: str, steps: int) -> dict[str, float]:
    print(kind, steps, file=process.stdin, flush=True)
    return _read(process)


def _read(process: subprocess.Popen) -> dict[str, float]:
    line = process.stdout.readline()
    if not line:
        raise ValueError(f"this command has ended early: {' '.join(process.args)}")
    return json.loads(line)


def _print(found: Mapping) -> None:
    table = rich.table.Table("setting", title=found["net"], box=rich.box.MARKDOWN)
    for heading in ("CPU ms/step", "quartiles", "to programs", "ms/step", "page faults/step"):
        table.add_column(heading, justify="right")
    base = [cell["cpu_ms"] for cell in found["settings"][_PROGRAMS]]
    for setting, cells in found["settings"].items():
        cpu, wall, faults = (
            [cell[figure] for cell in cells] for figure in ("cpu_ms", "ms", "page_faults")
        )
        low, median, high = np.percentile(cpu, [25, 50, 75])
        ratio = np.median(np.divide(cpu, base))
        quartiles = f"{low:.1f} to {high:.1f}"
        rest = (f"{ratio:.3f}", f"{np.median(wall):.1f}", f"{np.median(faults):.0f}")
        table.add_row(setting, f"{median:.1f}", quartiles, *rest)
    rich.console.Console(width=120).print(table)
    for setting, profile in found["profiles"].items():
        leading = sorted(profile.items(), key=lambda item: -item[1])[:10]
        told = ", ".join(f"{kind} {ms:.1f}" for kind, ms in leading)
        print(f"- {setting}, ms by operation of {sum(profile.values()):.1f}: {told}", flush=True)


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
