"""An aggregator whose workers only record what they receive."""

import numpy as np

from terngrad.coordination import groups
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.server.aggregator import Aggregator
from terngrad.exchange.parameter_server.server.arithmetic import PackedArithmetic
from terngrad.ops.packing import ReferencePacking
from terngrad.service.messages import Header, split_frame


class Served:
    """An aggregator whose workers are all in view 1, and its results by worker."""

    def __init__(self, workers=2, kind=Kind.FLOATS, items=4, reduce=None, kept_steps=1, **limits):
        self.delivered = {i: [] for i in range(workers)}
        arithmetic = PackedArithmetic(ReferencePacking())
        arithmetic.reduce = reduce or arithmetic.reduce
        self.entered = {i: [] for i in range(workers)}  # what each has received about its views
        self.aggregator = Aggregator(workers, arithmetic, self._deliver, kept_steps, **limits)
        self.operation = Operation("sum", kind, items, 1, workers)
        for worker in range(workers):
            self.aggregator.declare(worker, self.operation.message(0))
        self.enter(1, *range(workers))

    def _deliver(self, worker, frame):
        header, _ = split_frame(frame)
        if header.enters:
            self.entered[worker].append((header.view, groups.unpack(header.contributors)))
        else:
            self.delivered[worker].append(frame)

    def enter(self, view, *workers, members=()):
        """Moves workers into a view of `members`, by default of all workers."""
        header = Header(enters=True, view=view, contributors=groups.pack(members or self.entered))
        for worker in workers:
            self.aggregator.enter(worker, header)

    def push(self, worker, step, values=(), piece=0, operation=0, view=1, by=()):
        """Pushes a worker's part of a piece; `by` are the contributors, by default all workers."""
        header = Header(step=step, operation=operation, piece=piece, view=view)
        header.contributors = groups.pack(by or self.delivered)
        self.aggregator.push(worker, header, memoryview(np.asarray(values).tobytes()))

    def headers(self, worker):
        """Returns the headers of the results that a worker has received."""
        return [split_frame(frame)[0] for frame in self.delivered[worker]]

    def results(self, worker, dtype="<f4"):
        """Returns the step and the values of each result that a worker has received."""
        found = [split_frame(frame) for frame in self.delivered[worker]]
        return [(header.step, np.frombuffer(payload, dtype)) for header, payload in found]


def floats(*values):
    """Returns values as an array of float32."""
    return np.asarray(values, "<f4")
