"""Files that outlive a loss of power: on the disk before they get their name, and after it."""

import os


def sync(path: str) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: str, path: str) -> None:
    """Gives a file its name, in the same folder or below it, and waits for the disk.

    Raises:
      OSError: the file or its folder cannot be written.
    """
    sync(temporary)
    os.replace(temporary, path)
    sync(os.path.dirname(path) or ".")
