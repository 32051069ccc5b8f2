"""Locks for folders that only one process may write to."""

import fcntl
import os
from typing import IO


def hold_alone(folder: str, kind: str = "training") -> IO[str]:
    """Locks a folder until the returned file is closed or the process ends.

    Args:
      folder: folder to lock.
      kind: kind of process that holds such a lock, for the error.

    Raises:
      ValueError: another process holds the lock.
    """
    file = open(os.path.join(folder, ".lock"), "a+", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip()
        raise ValueError(
            f"--train_dir={folder}: another {kind}, process {holder}, writes there."
        ) from None
    file.truncate(0)
    print(os.getpid(), file=file, flush=True)
    return file
