"""Files that survive a loss of power, and locks for folders that only one process may write to."""

import errno
import fcntl
import os
import socket
from typing import IO


def sync(path: str) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: str, path: str) -> None:
    """Renames a temporary file, in the same folder or below it, and waits for the disk.

    Raises:
      OSError: the file or its folder cannot be written.
    """
    sync(temporary)
    os.replace(temporary, path)
    sync(os.path.dirname(path) or ".")


# Errors of file systems without locks: some network file systems, depending on mount options.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


class FolderInUseError(ValueError):
    """Says which other process writes to a folder."""


def lock_folder(folder: str, kind: str = "training") -> IO[str]:
    """Locks a folder until the returned file is closed or the process ends, even by SIGKILL.

    On a file system without locks nothing is locked.

    Args:
      folder: folder to lock.
      kind: kind of process that holds such a lock, for the error.

    Raises:
      FolderInUseError: another process holds the lock.
    """
    file = open(os.path.join(folder, ".lock"), "a+", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "which has just started"
        file.close()
        why = f"another {kind}, {holder}, writes there; allowed is a folder of its own"
        raise FolderInUseError(why) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    file.truncate(0)
    print(f"process {os.getpid()} on {socket.gethostname()}", file=file, flush=True)
    return file
