"""The exchange over Horovod (Gloo or MPI): processes that horovodrun or mpirun started.

Only Horovod's collectives are used: its optimizer wrapper does not average under Keras 3.
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

_PATIENCE = 3  # which of the processes is lost, the caller knows better than Gloo

T = TypeVar("T")


def start(timeout_secs: float) -> HorovodTransport:
    """Meets the other processes; TensorFlow's threads and devices may still be set afterwards.

    Args:
      timeout_secs: after which the caller takes a silent process for lost; Gloo is more patient,
        unless HOROVOD_GLOO_TIMEOUT_SECONDS is set already.

    Raises:
      ValueError: no launcher started this process, or not one that Horovod was built for.
    """
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(math.ceil(_PATIENCE * timeout_secs)))
    hvd.init()
    if why := launched.misfit(hvd.size(), os.environ):
        built = "with" if hvd.mpi_built() else "without"
        raise ValueError(f"must be started by horovodrun or mpirun: {why} (built {built} MPI)")
    return HorovodTransport()


class HorovodTransport(Transport):
    """Horovod's collectives.

    Horovod matches operations by name and runs them when all processes have them ready. To
    TensorFlow they have no side effects: none waits for another, and one whose result nobody needs
    is left out, so all processes must need the same.
    """

    def __init__(self) -> None:
        """Joins the processes that `hvd.init()` met."""
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
        """Every process' object, in the order of the processes; TensorFlow computes for this."""
        return hvd.allgather_object(mine, name="objects")

    def _named(self, name: str) -> dict:
        # The scope of a function or loop, which may differ between processes, is left out; so the
        # name itself must have none.
        label = re.sub(r"[^A-Za-z0-9.-]", "_", name.replace("/", "."))
        if self._names.setdefault(label, name) != name:
            raise ValueError(f"operations {name!r} and {self._names[label]!r} get the same name")
        return {"name": label, "ignore_name_scope": True}
