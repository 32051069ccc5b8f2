"""Errors of a process that has no memory left, in one line that says what helps."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from terngrad.exchange.operation_errors import reason

# TensorFlow raises its ResourceExhaustedError also for a full disk and for long messages.
_MEMORY = re.compile(r"MemoryError|OOM|OUT_OF_MEMORY|[Oo]ut of memory|[Ff]ailed to allocate")
_OF_GPU = re.compile(r"CUDA_ERROR|device:GPU|allocator GPU")


@contextlib.contextmanager
def naming_out_of_memory() -> Iterator[None]:
    """Words the error of a block for which there is too little memory.

    Raises:
      MemoryError: says what could not be allocated, and what helps.
    """
    try:
        yield
    except MemoryError as error:
        raise _worded(str(error)) from error
    except tf.errors.ResourceExhaustedError as error:
        if not _MEMORY.search(str(error)):
            raise
        raise _worded(reason(error)) from error


def _worded(what: str) -> MemoryError:
    what = what.strip().removeprefix("MemoryError:").strip()
    where = "on the GPU (see nvidia-smi)" if _OF_GPU.search(what) else "(see ulimit -v)"
    return MemoryError(
        f"out of memory{f' ({what})' if what else ''}: "
        f"needs a smaller --batch_size or --net, or more memory {where}"
    )
