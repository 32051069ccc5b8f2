"""Coded sums through ps while workers and ps come and go: the bits of one process alone."""

import contextlib
import dataclasses
import functools
import itertools
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from terngrad.cluster.progress import ProcessProgress
from terngrad.coordination.states import Rules
from terngrad.exchange.local import LocalExchange
from terngrad.exchange.parameter_server.exchange import ParameterServerConnection
from terngrad.exchange.parameter_server.server.arithmetic import PackedArithmetic
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.ops.native import NativeKernels
from terngrad.testing.addresses import free_addresses
from terngrad.testing.coded_means import SHAPES, means_of, reduced, reduction_of
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.ps_clients import config_of
from terngrad.testing.threads import in_threads

RETURN_SECS = 0.1  # for which a lost worker may come back before the others go on
STEPS = 2  # of a view
OPERATIONS = 4  # of a step: scales, codes, and again scales and codes of the means


class Cluster(contextlib.AbstractContextManager):
    """A ps in this process, and the workers of a training that goes on without lost ones."""

    def __init__(self, workers, local_nodes, kernels):
        self.hosts = tuple(f"host{i}:1" for i in range(workers))
        self.local_nodes, self.kernels = local_nodes, kernels
        self.rules = Rules(workers, True, HANG_SECS, RETURN_SECS)
        self.addresses = free_addresses(1)
        self._started, self.server = [], None
        self.start_server()

    def __exit__(self, *error):
        for worker in self._started:
            worker.lose()
        self.end_server()

    def start_server(self):
        """Starts a ps in the place of the last one, if any."""
        if self.server:
            self.end_server()
        config = config_of(self.addresses, 0, workers=self.hosts)
        self.server = Server(
            config, PackedArithmetic(self.kernels.packing), self.rules, lambda line: None
        )
        self.server.start(self.addresses[0])
        threading.Thread(target=self.server.wait, daemon=True).start()

    def end_server(self):
        self.server.stop()
        self.server.close()

    def start(self, rank):
        self._started.append(Worker(self, rank))
        return self._started[-1]


@dataclasses.dataclass(frozen=True)
class Made:
    """A step that a worker made: in which view, with whom, and its weights after it."""

    view: int
    members: tuple[int, ...]
    weights: bytes


class Worker:
    """A worker that makes steps in a graph."""

    def __init__(self, cluster, rank):
        config = config_of(cluster.addresses, rank, workers=cluster.hosts)
        self.rank, self._progress = rank, ProcessProgress()
        self.client = Client(config, self._progress, elastic=True)
        self.connection = ParameterServerConnection(self.client, owners_change=True)
        self.step = tf.Variable(0, dtype=tf.int64)
        self.weights = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
        nodes = cluster.local_nodes
        exchange = self.connection.exchange(nodes, cluster.kernels, self.step)
        self.reduction = reduction_of(exchange, cluster.kernels, self.step)
        self._own = range(rank * nodes, (rank + 1) * nodes)
        self._act = tf.function(self._make_step, autograph=False)
        self.made = {}

    def _make_step(self):
        found = reduced(self.reduction, self.step.read_value(), self._own)
        with self.reduction.updates(found):
            for weight, mean in zip(self.weights, found.means, strict=True):
                weight.assign_sub(mean)

    def train(self, until, *, begins_anew=False):
        """Makes steps, in whatever views there are; if it begins anew, the present one is over."""
        while begins_anew and not self.client.steps.interrupted:
            time.sleep(0.01)
        while (number := int(self.step)) < until:
            if self.client.steps.interrupted:
                self.connection.synchronize([self.step, *self.weights])
                continue
            try:
                self._act()
            except tf.errors.OpError:
                assert self.client.steps.interrupted
                continue
            self._progress.batches = number + 1
            self.client.coordination.send_progress()  # now it has the state, if others are lost
            weights = b"".join(weight.numpy().tobytes() for weight in self.weights)
            view = self.connection.version, self.connection.members
            self.made[number] = Made(*view, weights)

    def lose(self):
        """Ends the connection, without a word."""
        self.client.close(is_done=False)

    def die(self, operation):
        """Begins a step, and is lost before it pushes the operation of this index."""
        push, pushed = self.client.steps.push, itertools.count()

        def push_or_die(*given):
            if next(pushed) == operation:
                self.lose()
                raise ValueError("this worker dies")
            push(*given)

        self.client.steps.push = push_or_die
        with pytest.raises(tf.errors.OpError, match="this worker dies"):
            self._act()


def assert_bits_of_the_same_views_alone(workers, local_nodes, kernels):
    """Makes the steps that workers have made, each view with a new memory; returns the last one."""
    made = {number: step for worker in workers for number, step in worker.made.items()}
    weights = [tf.zeros(shape) for shape in SHAPES]
    view, alone = 0, None
    for number in range(len(made)):
        nodes = [m * local_nodes + i for m in made[number].members for i in range(local_nodes)]
        if made[number].view != view:
            view = made[number].view
            alone = reduction_of(LocalExchange(len(nodes), kernels), kernels)
        means = means_of(alone, tf.constant(number), nodes)
        weights = [weight - mean for weight, mean in zip(weights, means, strict=True)]
        wanted = Made(view, made[number].members, b"".join(w.numpy().tobytes() for w in weights))
        of_workers = [worker.made[number] for worker in workers if number in worker.made]
        assert all(step == wanted for step in of_workers), f"step {number}, {wanted.members}"
    return alone


def assert_memory_is_shared(workers, alone):
    """Asserts that owners keep together what a process alone does, each its own shares."""
    kept = [worker.reduction.memory.read_sums() for worker in workers]
    has_some = [False for _ in workers]
    for mine, one in zip(zip(*kept, strict=True), alone.memory.read_sums(), strict=True):
        for pieces, whole in zip(zip(*mine, strict=True), one, strict=True):
            np.testing.assert_array_equal(sum(pieces), whole)  # the others' are zeros
            differ = [piece.numpy() != 0 for piece in pieces]
            assert not any((a & b).any() for a, b in itertools.combinations(differ, 2))
            has_some = [has or own.any() for has, own in zip(has_some, differ, strict=True)]
    assert all(has_some)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "views", "local_nodes"),
    [
        (3, [(0, 1, 2), (0, 2), (0, 1, 2), (0, 1, 2), (1,), (0, 1)], 1),
        (2, [(0, 1), (1,), (0, 1), (0,), (0, 1), (1,), (0, 1), (0,)], 2),
    ],
)
def test_law_4_owners_of_each_view_give_the_bits_of_one_that_begins_anew(
    native_library, count, views, local_nodes
):
    """Workers are lost in turn before each operation of a step.

    Where the members of two views in a row are the same, the ps was started again.
    """
    kernels, present, every = NativeKernels(), {}, []
    operations = itertools.cycle(range(OPERATIONS))
    with Cluster(count, local_nodes, kernels) as cluster:
        for number, members in enumerate(views):
            until = STEPS * (number + 1)
            lost = [present.pop(rank) for rank in {*present} - {*members}]
            stay = [*present.values()]
            come = [cluster.start(rank) for rank in members if rank not in present]
            every += come
            present |= {worker.rank: worker for worker in come}
            if stay and not (lost or come):
                cluster.start_server()
            # A step in which a worker is lost is given up; otherwise none is made before a view.
            calls = [functools.partial(worker.train, until) for worker in come]
            after = [
                functools.partial(worker.train, until, begins_anew=not lost) for worker in stay
            ]
            die = [functools.partial(each.die, next(operations)) for each in lost]
            found = in_threads(*calls, *after, *die)
            assert not [each for each in found if isinstance(each, BaseException)]
            made = [present[rank].made[until - 1] for rank in members]
            assert all(step.members == members for step in made)
            alone = assert_bits_of_the_same_views_alone(every, local_nodes, kernels)
            assert_memory_is_shared(list(present.values()), alone)
