"""Servers and workers of an asynchronous training in threads of a test; stores without servers."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from terngrad.asynchronous.chief import States
from terngrad.asynchronous.client import Client, Pulled
from terngrad.asynchronous.copies import change_codes
from terngrad.asynchronous.gradient import Computed, GradientStep, parts_by_ps
from terngrad.asynchronous.plan import Plan, state_bytes, state_groups
from terngrad.asynchronous.row import make_shards
from terngrad.asynchronous.server import Server
from terngrad.asynchronous.snapshots import SnapshotSettings
from terngrad.asynchronous.store import Store
from terngrad.codecs.factory import largest_code, make_codecs
from terngrad.connect import streams
from terngrad.exchange.local import LocalExchange
from terngrad.layout import Policy, make_layout
from terngrad.ops.reference import ReferenceKernels
from terngrad.testing.addresses import free_addresses
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.nets import make_model
from terngrad.testing.ps_clients import WORKERS, config_of
from terngrad.training import schedules
from terngrad.training.averages import MovingAverages
from terngrad.training.classifier import Classifier
from terngrad.training.optimizers import Optimizer, make_optimizer
from terngrad.training.reduction import Reduction
from terngrad.training.runtime import choose_kernels

CONFIGURATION = {"layout": "this one", "batch_size": "8"}
PLAN = Plan(
    run="a run",
    names=("a/kernel", "a/bias"),
    shapes=((40, 3), (3,)),
    policy=Policy(grad_bits=1),
    bucket_elements=64,
    statistics=0,
    nodes=1,
    optimizer="gd",
    momentum=0.0,
    averages_decay=0.0,
    max_steps=100,
    max_staleness=-1,
    pull_bits=32,
    schedule="",
    configuration=CONFIGURATION,
)


def gradient(scale: float = 1.0, word: int = 0, sign: int = 0) -> bytes:
    """Returns a push's content for PLAN: two scales, codes of 123 elements in 4 groups."""
    return np.float32([scale] * 2).tobytes() + np.array([word, sign] * 4, "<u4").tobytes()


SECS, RATE, DECAY = HANG_SECS, 0.05, 0.99
KERNELS = choose_kernels().kernels
TERNARY = Policy(grad_bits=1, clip_factor=2.5, float_layers=("logits",))


class Worker:
    """A worker's net and its calls.

    Attributes:
      classifier: the net.
      state: its variables, and those of optimizer and averages, by "GROUP/NAME".
      plan: of the run that it would begin.
      shards: shard of each ps.
      client: its calls to the ps.
      log: lines that it has logged.
      stopped: whether it was asked to end.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        rank: int = 0,
        workers: int = 1,
        nodes: int = 1,
        policy: Policy = TERNARY,
        model: keras.Model | None = None,
        **plan: Any,
    ) -> None:
        """Sends nothing yet; `plan` has fields of the plan that differ from the usual ones."""
        self.classifier = Classifier(model or make_model())
        names, variables = self.classifier.names, self.classifier.variables
        self.layout = make_layout(names, [v.shape for v in variables], policy, 64)
        self.statistics = list(self.classifier.state.values())
        count = sum(v.shape.num_elements() for v in self.statistics)
        exchange, codecs = LocalExchange(nodes, KERNELS), make_codecs(self.layout, KERNELS)
        max_code = largest_code(codecs)
        self.shards = make_shards(self.layout, len(hosts), nodes, count, max_code)
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
        reduction = Reduction(codecs, exchange, step, 3, first_node=rank * nodes)
        self.compute = GradientStep(self.classifier, self.layout, reduction)
        configuration = {"layout": self.layout.fingerprint().hex()}
        options = {"optimizer": "gd", "pull_bits": 32, "max_steps": 1000, "max_staleness": -1}
        self.plan = Plan(
            run="a run",
            names=self.layout.names,
            shapes=self.layout.shapes,
            policy=policy,
            bucket_elements=64,
            statistics=count,
            nodes=nodes,
            max_code=max_code,
            momentum=0.9,
            averages_decay=DECAY,
            schedule="",
            configuration=configuration,
            **options | plan,
        )
        self.optimizer = make_optimizer(self.plan.optimizer, variables, 0.9)
        self.averages = MovingAverages(variables, DECAY)
        self.state = state_of(self.classifier, self.optimizer, self.averages)
        self.log: list[str] = []
        self.stopped = False
        what = (
            self.shards,
            self.plan.pull_bits,
            configuration,
            self.log.append,
            lambda: self.stopped,
            change_codes(self.plan, self.shards, KERNELS),
        )
        self.client = Client(config_of(hosts, rank, workers=names_of(workers)), *what)

    def begin(self) -> None:
        """Begins a run at all ps."""
        self.client.enter()
        self.client.begin(self.plan, self.states().pack(), 0)

    def states(self) -> States:
        """Converts between its variables and the states of the ps."""
        groups = state_groups(self.plan)
        return States(self.state, self.statistics, self.layout, groups, self.shards)

    def begin_at(self, server: Server, run: str) -> None:
        """Begins a run at one ps, without a reply to any worker."""
        own = dataclasses.replace(self.plan, run=run)
        plan, shard, _ = server.store.read_plan(own.to_json().encode())
        server.store.begin(plan, shard, self.states().pack()[self.shards.index(shard)], 0)

    def train(self, batches: tf.data.Dataset, steps: int) -> Pulled:
        """Makes steps until the run is finished; returns what it pulled last."""
        pulled = self.client.pull()
        for images, labels in batches.take(steps):
            if pulled.finished:
                break
            pulled = self.client.push(self.gradient(pulled, images, labels), pulled.versions)
        return pulled

    def computed(self, pulled: Pulled, images: tf.Tensor, labels: tf.Tensor) -> Computed:
        """Computes the gradient of a batch, float32 [B, H, W, C] and int32 [B]."""
        return self.compute(images, labels, pulled.version, pulled.parameters, pulled.statistics)

    def gradient(self, pulled: Pulled, images: tf.Tensor, labels: tf.Tensor) -> list[bytes]:
        """Returns what it pushes to each ps for a batch."""
        computed = self.computed(pulled, images, labels)
        return parts_by_ps(computed.pushable, self.shards, KERNELS.packing)

    def fetched(self) -> dict[str, np.ndarray]:
        """Returns the state of all ps, by name."""
        _, packed = self.client.fetch([state_bytes(self.plan, shard) for shard in self.shards])
        self.states().unpack(packed)
        return {name: v.numpy() for name, v in self.state.items()}


def names_of(workers: int) -> list[str]:
    """Returns the "host:port" of each worker; none of them listens."""
    return [f"worker:{i + 1}" for i in range(workers)]


def state_of(
    classifier: Classifier, optimizer: Optimizer, averages: MovingAverages
) -> dict[str, tf.Variable]:
    """Returns the variables of a training by "GROUP/NAME", as in checkpoints."""
    groups = {"variables": classifier.variables, "averages": averages.shadows}
    groups |= {f"slots/{slot}": values for slot, values in optimizer.slots.items()}
    named = lambda group, values: zip(classifier.names, values, strict=True)
    state = {f"{g}/{name}": v for g, values in groups.items() for name, v in named(g, values)}
    return state | {f"variables/{name}": v for name, v in classifier.state.items()}


@contextlib.contextmanager
def serving(
    folder: pathlib.Path,
    count: int = 1,
    workers: int = 1,
    at: Sequence[str] | None = None,
    secs: float = SECS,
    behind: Sequence[str] | None = None,
) -> Iterator[tuple[list[Server], Sequence[str]]]:
    """Runs servers; yields them and their addresses.

    Args:
      folder: gets a folder of snapshots for each ps.
      count: number of ps.
      workers: number of workers.
      at: addresses of the ps; None = free ones.
      secs: for which the ps wait for lost workers.
      behind: where the ps listen if proxies have their addresses.
    """
    hosts = at or free_addresses(count)
    servers = []
    for i in range(count):
        settings = SnapshotSettings(str(folder / f"ps_{i}"), 1000)
        schedule = lambda text: schedules.fixed(RATE)
        store = Store(i, count, names_of(workers), KERNELS, schedule, settings, print)
        servers.append(Server(config_of(hosts, i, secs, workers=names_of(workers)), store))
        servers[-1].start((behind or hosts)[i])
    try:
        yield servers, hosts
    finally:
        with mock.patch.object(streams, "_LEAVE_SECS", 0.0):  # these workers do not leave
            for server in servers:
                server.close()


@contextlib.contextmanager
def two_workers(
    folder: pathlib.Path, count: int = 1, secs: float = SECS, **plan: Any
) -> Iterator[tuple[list[Server], Worker, Worker]]:
    """Yields servers, and their two workers, which have entered a run of the first one."""
    with serving(folder, count, workers=2, secs=secs) as (servers, hosts):
        chief, other = (Worker(hosts, rank, 2, **plan) for rank in range(2))
        chief.begin()
        other.client.await_run()
        yield servers, chief, other


def store_in(
    folder: pathlib.Path,
    steps: int = 4,
    ps: int = 0,
    count: int = 1,
    log: Callable[[str], None] = print,
    chosen: int = -1,
) -> Store:
    """Returns the store of a ps of two workers, which nobody can call.

    Args:
      folder: of its snapshots.
      steps: see `SnapshotSettings`.
      ps: its index.
      count: number of ps.
      log: called with lines for the log.
      chosen: see `SnapshotSettings`.
    """
    make = lambda text: schedules.fixed(0.1)
    settings = SnapshotSettings(str(folder), steps, chosen)
    return Store(ps, count, WORKERS, ReferenceKernels(), make, settings, log)


def with_run(store: Store, plan: Plan = PLAN, version: int = 0) -> Store:
    """Begins a run in a store, with ones for all values; returns the store."""
    _, shard, size = store.read_plan(plan.to_json().encode())
    store.begin(plan, shard, np.ones(size // 4, "<f4").tobytes(), version)
    return store


def push(store: Store, count: int, worker: int = 0, first: int = 1) -> None:
    """Pushes gradients of the run of PLAN, numbered from `first` on."""
    for sequence in range(first, first + count):
        store.push(PLAN.run, worker, 7, sequence, store.version, gradient(word=1))
