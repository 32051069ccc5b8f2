"""Which GPUs of a machine each of its processes uses."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICES = "/dev/nvidia[0-9]*"  # one for each GPU, besides others such as nvidiactl
_ANSWER_SECS = 10.0  # of the driver
_GROWS = "TF_FORCE_GPU_ALLOW_GROWTH"  # else a process allocates all memory of its GPU


def found(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the GPUs that a program would use: those named in its environment, or all."""
    visible = environment.get(_VISIBLE)
    if visible is not None:
        is_valid = lambda gpu: gpu and not gpu.startswith("-")  # CUDA hides what comes after others
        return list(itertools.takewhile(is_valid, map(str.strip, visible.split(","))))
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=_ANSWER_SECS
        )
        return _listed(listed.stdout.splitlines())
    # Containers often lack that program. They have the devices that they may use.
    return [str(i) for i, _ in enumerate(glob.glob(_DEVICES))]


def _listed(lines: Sequence[str]) -> list[str]:
    """Returns the GPUs that `nvidia-smi -L` lists; one that is cut up (MIG) counts as its slices.

    CUDA sees the first slice only, unless the variable names another one.
    """
    gpus: list[list[str]] = []
    for line in lines:
        name = line.rpartition("(UUID: ")[2].rstrip(") ")
        if line.startswith("GPU "):
            gpus.append([name])
        elif gpus and name.startswith("MIG-"):
            gpus[-1].append(name)
    if all(len(names) == 1 for names in gpus):
        return [str(i) for i, _ in enumerate(gpus)]
    return [name for gpu, *slices in gpus for name in slices or [gpu]]


def variables(
    gpus: Sequence[str], slot: int, slots: int, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Returns the variables that give a process its share of the GPUs; none without a GPU.

    Args:
      gpus: of the machine.
      slot: index of the process.
      slots: number of processes. With fewer GPUs, some share one and take memory as they need it.
      environment: of the process before.
    """
    if not gpus:
        return {}
    grows = {} if slots <= len(gpus) or _GROWS in environment else {_GROWS: "true"}
    return {_VISIBLE: ",".join(share(gpus, slot, slots))} | grows


def no_gpu(gpus: Sequence[str]) -> dict[str, str]:
    """Returns the variables that keep a process off the GPUs; none without a GPU."""
    return {_VISIBLE: "-1"} if gpus else {}


def share(items: Sequence[Any], slot: int, slots: int) -> Sequence[Any]:
    """Returns a slot's share of cores or GPUs. Slots share items where there are too few."""
    return items[slot::slots] or items[slot % len(items) :][:1]
