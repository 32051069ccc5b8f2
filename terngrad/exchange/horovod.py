"""The exchange over Horovod (Gloo or MPI): processes that horovodrun or mpirun started.

It uses only Horovod's collectives: Horovod's optimizer wrapper does not average under Keras 3.
"""

from __future__ import annotations

import math
import os
import re
from typing import TypeVar

import horovod.tensorflow as hvd
import tensorflow as tf

from terngrad.cluster import launched
from terngrad.exchange.two_shot import Transport

_TIME_OUTS = 3  # the caller reports a lost process before Gloo does, because it can name it

T = TypeVar("T")


def start(timeout_secs: float) -> HorovodTransport:
    """Joins the other processes; TensorFlow's threads and devices may still be set afterwards.

    Args:
      timeout_secs: time after which the caller counts a silent process as lost. Gloo waits longer,
        unless HOROVOD_GLOO_TIMEOUT_SECONDS is set.

    Raises:
      ValueError: no launcher that Horovod was built for started this process.
    """
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(math.ceil(_TIME_OUTS * timeout_secs)))
    hvd.init()
    if why := launched.why_incomplete(hvd.size(), os.environ):
        built = "with" if hvd.mpi_built() else "without"
        raise ValueError(f"must be started by horovodrun or mpirun: {why} (built {built} MPI)")
    return HorovodTransport()


class HorovodTransport(Transport):
    """Horovod's collectives.

    Horovod matches operations by name and runs each one when it is ready on all processes. To
    TensorFlow they have no side effects: none waits for another, and TensorFlow drops an operation
    whose result is not used. So all processes must use the same results.
    """

    def __init__(self) -> None:
        """Uses the processes that `hvd.init()` found."""
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()
        self._names: dict[str, str] = {}

    def all_to_all(self, parts: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        return tf.ensure_shape(hvd.alltoall(parts, **self._named(name)), parts.shape)

    def all_gather(self, part: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        rows = hvd.allgather(part[tf.newaxis], **self._named(name))
        return tf.ensure_shape(rows, [self.size, *part.shape])

    def broadcast(self, value: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        return hvd.broadcast(value, root_rank=0, **self._named(name))

    def gather_objects(self, mine: T) -> list[T]:
        """Returns the objects of all processes, in the order of the processes; uses TensorFlow."""
        return hvd.allgather_object(mine, name="objects")

    def _named(self, name: str) -> dict:
        # The scope of a function or loop may differ between processes, so it is ignored, and the
        # name must not look as if it had one.
        label = re.sub(r"[^A-Za-z0-9.-]", "_", name.replace("/", "."))
        if self._names.setdefault(label, name) != name:
            raise ValueError(f"operations {name!r} and {self._names[label]!r} get the same name")
        return {"name": label, "ignore_name_scope": True}
