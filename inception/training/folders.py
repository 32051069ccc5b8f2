"""Folders that one process alone writes to."""

import fcntl
import os
from typing import IO


def hold_alone(folder: str, kind: str = "training") -> IO[str]:
    """Locks a folder until the returned file is closed or the process ends, however it ends.

    `kind` is what another process is called that holds it.

    Raises:
      ValueError: if another process, which it names, holds it.
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
