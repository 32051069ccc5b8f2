"""Standard output and error that a training outlives: a closed terminal or pipe, a full disk."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import stat
import sys
from typing import TextIO

# What ends the reader of an output, and the signal that tells of it.
_ENDS = {errno.EIO: signal.SIGHUP, errno.EPIPE: signal.SIGPIPE}
_STDOUT, _STDERR = 1, 2

_lost_by: list[signal.Signals] = []


def protect() -> None:
    """Lets no later write of this process to stdout or stderr fail.

    What is written to a closed terminal or pipe is discarded; see `lost_by`. A full disk costs only
    the lines for which there is no space, and a line says so where it can.
    """
    sys.stdout, sys.stderr = _protected(sys.stdout), _protected(sys.stderr)


def lost_by() -> signal.Signals | None:
    """Returns SIGHUP or SIGPIPE if a protected output's terminal or pipe was closed, else None.

    Where SIGHUP is ignored, as under nohup, a closed terminal is none.
    """
    return _lost_by[0] if _lost_by else None


def discard(descriptor: int) -> None:
    """Discards further output of this process to a descriptor."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


class _Output(io.FileIO):
    """An output beneath Python's buffers."""

    _missing = ""  # why the last write failed

    def write(self, data: bytes) -> int | None:
        try:
            if self._missing:
                super().write(f"\nLines are missing here: {self._missing}.\n".encode())
                self._missing = ""
            return super().write(data)
        except OSError as error:
            self._lose(error)
            return len(data)

    def _lose(self, error: OSError) -> None:
        is_file = stat.S_ISREG(os.fstat(self.fileno()).st_mode)  # may be on a bad disk
        if not is_file and (number := _ENDS.get(error.errno)):
            discard(self.fileno())
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGPIPE:
                _lost_by.append(number)  # Python itself ignores SIGPIPE
        elif not self._missing:
            self._missing = error.strerror
            if self.fileno() != _STDERR and sys.stderr is not None:  # else 2 may be another file
                line = f"Lines cannot be printed: {error.strerror}; the process goes on.\n"
                with contextlib.suppress(OSError):  # often it is the same file
                    os.write(_STDERR, line.encode())


def _protected(stream: TextIO) -> TextIO:
    # Others are no output of the process, or were replaced by a program that reads them.
    try:
        is_output = type(stream) is io.TextIOWrapper and stream.fileno() in (_STDOUT, _STDERR)
    except (OSError, ValueError):  # it has no descriptor, or is closed
        return stream
    if not is_output:
        return stream
    stream.flush()
    output = _Output(stream.fileno(), "w", closefd=False)
    is_buffered = isinstance(stream.buffer, io.BufferedIOBase)  # not with `python -u`
    return io.TextIOWrapper(
        io.BufferedWriter(output) if is_buffered else output,
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
