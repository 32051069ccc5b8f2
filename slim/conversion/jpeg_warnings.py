"""The warnings of libjpeg about a JPEG that it still decodes.

TensorFlow's libjpeg writes them to standard error, without the name of the file, whenever the
picture is decoded. Here they are caught, each for its picture.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import re
import threading
from collections.abc import Iterator

import tensorflow as tf

_WARNING = re.compile(
    rb"(?:[EW]\d{4} [^\n]*jpeg_mem\.cc:\d+\] )?"  # where TensorFlow's own code logs it
    rb"((?:Corrupt JPEG data|Premature end of JPEG|Inconsistent progression|Invalid SOS|"
    rb"Invalid Adobe|Unknown Adobe|Warning: )[^\n]*)"
)
_UNBUFFERED = 2  # of setvbuf
_STDERR = 2
_making = threading.Lock()


def find(content: bytes) -> str | None:
    """Decodes a JPEG as the training does; several threads may call it at once.

    Returns:
      The first warning about it; "" if there is none, or where the C library is not glibc, whose
      standard error can be exchanged; None if TensorFlow cannot decode the whole JPEG.
    """
    with _making:
        caught = _caught()
    if caught is None:
        return "" if _is_decodable(content) else None
    with caught.with_others():
        begin = caught.size()
        is_decodable = _is_decodable(content)
        is_silent = caught.size() == begin
    if is_silent or not is_decodable:
        return "" if is_decodable else None
    with caught.alone():  # the line may be about a picture of another thread
        begin = caught.size()
        _is_decodable(content)
        warning = _WARNING.search(caught.text(begin))
    return warning[1].decode() if warning else ""


def _is_decodable(content: bytes) -> bool:
    try:
        tf.io.decode_jpeg(content, ratio=8)  # reads all of the file, but computes few pixels
    except tf.errors.InvalidArgumentError:
        return False
    return True


@functools.cache  # which threads may call twice at once, but for the lock
def _caught() -> _StandardError | None:
    return _StandardError() if platform.libc_ver()[0] == "glibc" else None


class _StandardError:
    """Catches what C code writes to the variable `stderr` while a block runs.

    Python does not use the variable, so its output is not caught. At the end of the last block all
    but libjpeg's warnings is passed on to standard error.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        libc.fdopen.restype = ctypes.c_void_p
        self._content = os.memfd_create("stderr")
        self._file = libc.fdopen(os.dup(self._content), b"a")
        libc.setvbuf(ctypes.c_void_p(self._file), None, _UNBUFFERED, 0)
        self._variable = ctypes.c_void_p.in_dll(libc, "stderr")
        self._original = self._variable.value
        self._changed = threading.Condition()
        self._running = self._waiting = 0  # blocks with others, and those that want to be alone

    def size(self) -> int:
        """Returns how many bytes were written since the first block began."""
        return os.fstat(self._content).st_size

    def text(self, begin: int) -> bytes:
        """Returns what was written from a byte on."""
        return os.pread(self._content, self.size() - begin, begin)

    @contextlib.contextmanager
    def with_others(self) -> Iterator[None]:
        """Catches in a block beside which others may run."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._begin()
        try:
            yield
        finally:
            with self._changed:
                self._end()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Catches in a block beside which no other runs."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._running)
                self._begin()
                try:
                    yield
                finally:
                    self._end()
            finally:
                self._waiting -= 1
                self._changed.notify_all()

    def _begin(self) -> None:
        self._variable.value = self._file
        self._running += 1

    def _end(self) -> None:
        self._running -= 1
        if self._running == 0:
            self._variable.value = self._original
            if self.size():
                rest = re.sub(_WARNING.pattern + rb"\n?", b"", self.text(0))
                os.ftruncate(self._content, 0)
                with contextlib.suppress(OSError):  # it may be closed
                    os.write(_STDERR, rest)
        self._changed.notify_all()
