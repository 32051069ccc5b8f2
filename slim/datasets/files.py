"""Files that are written atomically, folders that one process writes to, and downloads."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

import rich.console
import rich.progress

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECS = 30
_SECS_PER_LINE = 60  # of progress in a log


class UnreadableError(OSError):
    """Names a file that cannot be read."""


def check_readable(paths: Iterable[str]) -> None:
    """Raises UnreadableError for the first file that cannot be opened."""
    for path in paths:
        try:
            open(path, "rb").close()
        except OSError as error:
            raise UnreadableError(f"{path}: cannot be read ({error.strerror})") from None


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields a temporary name in the folder of `path`; renames it to `path` on success.

    After an error or an interrupt the temporary file is removed and `path` is unchanged.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.partial")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


@contextlib.contextmanager
def replacing_text(path: str) -> Iterator[TextIO]:
    """Opens a text file that replaces `path` on success, and then survives a loss of power.

    Raises:
      OSError: the file cannot be written; the text names it.
    """
    try:
        with replacing(path) as temporary:
            with open(temporary, "w", encoding="utf-8") as file:
                yield file
            _sync(temporary)  # otherwise an empty file might get the name
        _sync(os.path.dirname(path) or ".")
    except OSError as error:  # of a full disk it names no file
        raise OSError(f"{path}: cannot be written ({error.strerror or error})") from None


def _sync(path: str) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone_in(folder: str) -> Iterator[None]:
    """Locks a folder; the system releases the lock of a killed process.

    Raises:
      ValueError: another process has locked it.
    """
    with _locked(folder, os.O_RDONLY, f"{folder}: another conversion writes there"):
        yield


@contextlib.contextmanager
def _locked(path: str, flags: int, busy: str) -> Iterator[None]:
    """Opens a file or folder and locks it; ValueError with the text `busy` if it is locked."""
    descriptor = os.open(path, flags)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(busy) from None
        yield
    finally:
        os.close(descriptor)


def progress_bar() -> rich.progress.Progress:
    """Returns a progress bar on stderr; where that is no terminal, a line now and then."""
    if not sys.stderr.isatty():
        return _Lines(disable=True)
    return rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(),
        rich.progress.TimeElapsedColumn(),
        console=rich.console.Console(stderr=True),
    )


class _Lines(rich.progress.Progress):
    """Prints how far a task is, for logs."""

    _next = 0.0  # when the next line is due

    def advance(self, task_id: rich.progress.TaskID, advance: float = 1) -> None:
        """See base class."""
        super().advance(task_id, advance)
        now = time.monotonic()
        self._next = self._next or now + _SECS_PER_LINE
        if now >= self._next:
            task = self.tasks[task_id]
            print(f"{task.description}: {task.percentage:.0f} %", file=sys.stderr, flush=True)
            self._next = now + _SECS_PER_LINE


def digest_of(path: str, algorithm: str = "sha256") -> str:
    """Returns a digest of a file, in hex; `algorithm` is one of hashlib's."""
    digest = hashlib.new(algorithm)
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def download(url: str, path: str, is_whole: Callable[[str], bool]) -> None:
    """Downloads `url` to `path`; resumes an interrupted download.

    Args:
      url: address of the file.
      path: final name of the file; nothing happens if it exists.
      is_whole: checks a finished download, given its path, before it gets its final name.

    Raises:
      ValueError: there is no network, another process downloads the file, or the download fails
        the check and was removed.
    """
    if os.path.exists(path):
        return
    folder, partial = os.path.dirname(path), f"{path}.partial"
    have = _size(partial)
    try:
        with _rest(url, have) as response:
            os.makedirs(folder, exist_ok=True)  # only now: without network no folder is left
            busy = f"{path}: another process downloads it"
            with _locked(partial, os.O_RDWR | os.O_CREAT, busy):
                if os.path.exists(path):  # another process has just finished it
                    os.remove(partial)
                    return
                if _size(partial) != have:
                    raise ValueError(busy)
                if response:
                    _append(response, partial, os.path.basename(url))
                _finish(url, partial, path, is_whole)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"cannot download {url} ({reason}); name a folder that has it with --source_dir"
        ) from None


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _rest(
    url: str, have: int
) -> contextlib.AbstractContextManager[http.client.HTTPResponse | None]:
    """Asks for all but the first bytes of `url`; gives None if nothing is missing."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT_SECS)
    except urllib.error.HTTPError as error:
        if have and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return contextlib.nullcontext()
        raise


def _append(response: http.client.HTTPResponse, path: str, name: str) -> None:
    """Appends a response to a file, or replaces the file if the response is the whole."""
    resumes = response.status == http.client.PARTIAL_CONTENT
    missing = int(response.headers.get("Content-Length", 0))
    with open(path, "ab" if resumes else "wb") as file, progress_bar() as bar:
        task = bar.add_task(name, total=missing or None)
        while chunk := response.read(_CHUNK_BYTES):
            file.write(chunk)
            bar.advance(task, len(chunk))
            missing -= len(chunk)
    if missing > 0:
        raise OSError(f"the connection ended {missing} bytes early; start again to continue")


def _finish(url: str, partial: str, path: str, is_whole: Callable[[str], bool]) -> None:
    """Checks a download and gives it its final name."""
    if not is_whole(partial):
        os.remove(partial)
        raise ValueError(
            f"{url}: the download is not the expected file (its checksum or format differs, as "
            "with a login page); it was removed"
        )
    os.replace(partial, path)
