"""Processes of this machine, from /proc."""

import contextlib
from pathlib import Path

_MEGA = 1024.0  # kilobytes in a megabyte


def cluster_members(train_dir: str) -> dict[str, int]:
    """Returns the ids of a training's processes by name: "0", "1", "ps 0"."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            flags = dict(
                word[2:].split("=", 1) for word in words if word[:2] == "--" and "=" in word
            )
            if flags.get("train_dir") == train_dir and "task_id" in flags:
                job = "ps " if flags.get("job_name") == "ps" else ""
                found[f"{job}{flags['task_id']}"] = int(process.name)
    return found


def resident_mb(process: int) -> float | None:
    """Returns the resident memory of a process in megabytes; None if it has ended."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc", str(process), "status").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("VmRSS:")] or ["0 0"]
        return float(line.split()[1]) / _MEGA
    return None
