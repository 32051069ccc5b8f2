"""One host of benchmarks/step_benchmark.py: training steps with several kinds of gradients.

The kinds take turns in one process, on synthetic images. There is no weight decay and no moving
average of the weights: DDP has neither, and only gradients, exchange and optimizer are compared.
The suite makes all steps of a round in one call. Other kinds make one step in a call, and use
Keras' `model.fit` with the library (terngrad/keras.py) on the same net.
"""

import contextlib
import dataclasses
import functools
import queue
import threading

import keras
import tensorflow as tf

from benchmarks import report, timing
from benchmarks.host import HostOptions, counters, joined, write_cells
from benchmarks.report import names_flag
from inception.flags import table
from inception.flags.configs import TrainConfig
from inception.flags.table import TEXT, at_least, flag, one_of
from inception.training.batches import training_batches
from inception.training.problem import problem_of
from slim.nets import nets_factory
from terngrad.exchange.connection import Connection
from terngrad.keras import DistributedCallback, distribute
from terngrad.layout import DEFAULT_BUCKET_ELEMENTS
from terngrad.library.group import Group

ONE_BY_ONE = "ternary one by one"
_BY_CHANNEL = {"scale_by": "channel", "draws": "antithetic"}
_CODECS = {  # fields of TrainConfig
    "float32": {"grad_bits": 32},
    "float16": {"grad_bits": 16},
    "ternary": {"grad_bits": 1},
    "ternary by channel": {"grad_bits": 1, **_BY_CHANNEL},
    "5 levels by channel": {"grad_bits": 2, **_BY_CHANNEL},
    "7 levels by channel": {"grad_bits": 3, "clip_factor": 4.0, **_BY_CHANNEL},
    "15 levels by channel": {"grad_bits": 4, "clip_factor": 5.0, **_BY_CHANNEL},
    ONE_BY_ONE: {"grad_bits": 1},
}
_LEVELS_7 = _CODECS["7 levels by channel"]
LOCAL_STEPS = {f"7 levels and {steps} local steps": steps for steps in (16, 64)}
_CODECS |= {kind: {**_LEVELS_7, "local_steps": steps} for kind, steps in LOCAL_STEPS.items()}
ALONE = "compute alone"  # on every host at once, without an exchange
KERAS = "ternary by Keras' fit"
KERAS_AT_ONCE = f"{KERAS} at once"  # all steps in one call, as the suite makes them
KINDS = (ALONE, *_CODECS, KERAS, KERAS_AT_ONCE)

OPTIMIZERS = ("momentum", "adam")

_POLL_SECS = 1.0
_ADAMS_RATE = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOptions(table.Checked):
    """The flags of each host, whatever makes its steps."""

    net: str = flag("Training", TEXT, "lenet_slim", "net to train")
    batch_size: int = flag("Training", at_least(1), 32, "images per host and step", "images")
    optimizer: str = flag("Training", one_of(*OPTIMIZERS), "momentum", "updates the weights")
    steps: int = flag("Runtime", at_least(1), 10, "steps per round", "steps")
    rounds: int = flag("Runtime", at_least(1), 7, "rounds for each kind of gradients")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(HostOptions, StepOptions):
    dataset: str = flag("Data", TEXT, "mnist", "data set of the net")
    bucket_elements: int = flag(
        "Training", at_least(1), DEFAULT_BUCKET_ELEMENTS, "values in a bucket"
    )
    kinds: tuple[str, ...] = names_flag("Training", KINDS, "kinds of gradients")


def main(options: _Options) -> None:
    """Measures the kinds of gradients in turns."""
    timing.configure(options, deterministic=True)
    with joined(options) as connection:
        write_cells(_measure(options, connection), options, connection.rank)


def _measure(options: _Options, connection: Connection) -> list[dict]:
    """Returns the figures of each kind."""
    variants = _variants(options, connection)
    for variant in variants.values():
        variant(1)  # compiles and connects; makes a whole round of local steps
    figures = ("ms", "interface_bytes", "cpu_ms", "page_faults")
    cells = {kind: {"variant": kind, **{name: [] for name in figures}} for kind in variants}
    for kind in list(variants) * options.rounds:
        _join_all(connection)
        before = counters(options.interface)
        wall, _ = timing.ms_per_step(variants[kind], options.steps)
        _join_all(connection)
        since = counters(options.interface).since(before)
        each = (wall, since.sent, 1000 * since.cpu_seconds, since.page_faults)
        for name, figure in zip(figures, each, strict=True):
            cells[kind][name].append(figure if name == "ms" else figure / options.steps)
    return list(cells.values())


def _variants(options: _Options, connection: Connection) -> dict[str, timing.Variant]:
    config = TrainConfig(
        dataset_name=options.dataset,
        net=options.net,
        batch_size=options.batch_size,
        clip_factor=2.5,
        quantize_logits=True,
        optimizer=options.optimizer,
        weight_decay=0.0,
        moving_average_decay=0.0,
        benchmark_mode=True,
        bucket_elements=options.bucket_elements,
    )
    if options.optimizer == "adam":
        config = dataclasses.replace(config, initial_learning_rate=_ADAMS_RATE)
    problem = problem_of(config)
    batches = training_batches(config, problem, None, 0, connection.rank, connection.size)
    variants = {}
    for kind in options.kinds:
        chosen = dataclasses.replace(config, **_CODECS.get(kind, {"grad_bits": 32}))
        if kind in (KERAS, KERAS_AT_ONCE):
            at_once = options.steps if kind == KERAS_AT_ONCE else 1
            classes = problem.num_classes
            variants[kind] = _keras_variant(config, classes, batches, connection, at_once)
        else:
            exchanged = None if kind == ALONE else connection
            variants[kind] = timing.suite_variant(chosen, batches, exchanged)
        if kind == ONE_BY_ONE:
            variants[kind] = functools.partial(_one_by_one, variants[kind])
    return variants


def _one_by_one(variant: timing.Variant, count: int) -> None:
    for _ in range(count):
        variant(1)


class _Turns(keras.callbacks.Callback):
    """Lets `fit`, which runs in a thread of its own, make steps only in its turns.

    A call of `fit` for each turn would copy weights and optimizer state to all workers each time.

    Attributes:
      thread: runs `fit`.
    """

    thread: threading.Thread

    def __init__(self, at_once: int) -> None:
        """Waits before each call, which makes so many steps."""
        super().__init__()
        self._at_once = at_once
        self._turns: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._made = threading.Semaphore(0)
        self._left: int | None = None  # calls of this turn; None = before the first one

    def make(self, count: int) -> None:
        """Makes steps, a call at least, with all that `fit` does between them."""
        if (
            not self.thread.ident
        ):  # not before the other kinds' first steps: one fit at a time begins
            self.thread.start()
        self._turns.put(max(1, count // self._at_once))
        while not self._made.acquire(timeout=_POLL_SECS):
            if not self.thread.is_alive():
                raise ValueError("fit has ended early")  # the thread has printed why

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Waits for a turn. Within one, the other thread sleeps: it would contend for Python."""
        if self._left == 0:
            self._made.release()
        self._left = (self._left or self._turns.get()) - 1


class _DropoutSeed(keras.layers.Layer):
    """Gives dropout another seed at each step, as the suite does.

    With the same seed at each step gradients are denser, and so are their codes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._generator = keras.random.SeedGenerator(1)

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns int32 [2]."""
        del images  # Keras calls no layer without an input
        return tf.cast(self._generator.next(), tf.int32)


def _keras_net(name: str, num_classes: int) -> keras.Model:
    """Returns a net of images alone."""
    net = nets_factory.build_net(name, num_classes=num_classes, dropout_keep_prob=0.5)
    images, *seed = net.inputs
    return keras.Model(images, net([images, _DropoutSeed()(images)] if seed else images))


def _keras_variant(
    config: TrainConfig,
    num_classes: int,
    batches: tf.data.Dataset,
    connection: Connection,
    at_once: int,
) -> timing.Variant:
    """Returns steps of one call of `model.fit`."""
    membership = contextlib.nullcontext()
    group = Group(connection.rank, connection.size, connection, membership=membership)
    model = _keras_net(config.net, num_classes)
    rate = config.initial_learning_rate
    adam = config.optimizer == "adam"
    optimizer = distribute(
        keras.optimizers.Adam(rate) if adam else keras.optimizers.SGD(rate, config.momentum),
        group,
        gradients="ternary",
        clip_factor=config.clip_factor,
        bucket_elements=config.bucket_elements,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, steps_per_execution=at_once)
    turns = _Turns(at_once)
    settings = {"callbacks": [DistributedCallback(group), turns], "verbose": 0}
    turns.thread = threading.Thread(target=model.fit, args=(batches,), kwargs=settings, daemon=True)
    return turns.make


def _join_all(connection: Connection) -> None:
    connection.all_gather(tf.zeros([1]), "benchmark/barrier")


if __name__ == "__main__":
    report.run(main, _Options)
