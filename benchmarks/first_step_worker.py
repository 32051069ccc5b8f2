"""One side of benchmarks/first_step_benchmark.py: builds a net and makes its first step.

Prints a line of JSON: seconds of elapsed time and of CPU time until the step is made, without
TensorFlow's import. The step shows its gradients, as the first one of a training program does.
"""

import dataclasses
import json
import time

import keras
from absl.flags import FlagValues

from benchmarks.keras_net import build_keras_net
from inception import app
from inception.flags import table
from inception.flags.configs import Threads, TrainConfig
from inception.flags.table import TEXT, at_least, flag
from inception.training.batches import training_batches
from inception.training.build import build_training
from inception.training.problem import resolve
from slim.nets import catalog
from terngrad.training import runtime


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Threads):
    """The flags of one side."""

    dataset: str = flag("Data", TEXT, "mnist", "data set of the net")
    net: str = flag("Training", TEXT, "lenet_slim", "net to train")
    images: int = flag("Training", at_least(1), 2, "images per node", "images")
    nodes: int = flag("Training", at_least(0), 1, "nodes of the suite's step; 0 = Keras' fit")


def main(values: FlagValues) -> None:
    """Makes the first step."""
    options = table.read(Options, values)
    runtime.configure(
        intra_threads=options.num_intra_threads,
        inter_threads=options.num_inter_threads,
        deterministic=True,
        log_placement=False,
    )
    config = TrainConfig(
        dataset_name=options.dataset,
        net=options.net,
        batch_size=options.images * max(1, options.nodes),
        num_nodes=max(1, options.nodes),
        grad_bits=1,
        clip_factor=2.5,
        benchmark_mode=True,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    make = _step_of_suite if options.nodes else _step_of_keras
    make(config)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({"s": wall, "cpu_s": cpu}), flush=True)


def _step_of_suite(config: TrainConfig) -> None:
    goal = resolve(config)
    runner = build_training(config, goal, 1000.0, ["/CPU:0"]).runner
    batches = iter(training_batches(config, goal, None, 0))
    runner.compile(batches)
    if not runner.one(batches).gradients:
        raise ValueError(f"{config.net}: the step shows no gradients")


def _step_of_keras(config: TrainConfig) -> None:
    goal, spec = resolve(config), catalog.get_spec(config.net)
    model = build_keras_net(
        config.net,
        num_classes=goal.num_classes,
        weight_decay=config.weight_decay,
        dropout_keep_prob=config.dropout_keep_prob,
    )
    losses = [keras.losses.SparseCategoricalCrossentropy(from_logits=True) for _ in model.outputs]
    optimizer = keras.optimizers.SGD(config.initial_learning_rate, config.momentum)
    weights = [1.0, *spec.auxiliary_weights]
    model.compile(optimizer, losses, loss_weights=weights, jit_compile=False)
    batches = training_batches(config, goal, None, 0)
    labelled = batches.map(lambda images, labels: (images, (labels,) * len(losses)))
    model.fit(labelled, steps_per_epoch=1, shuffle=False, verbose=0)


if __name__ == "__main__":
    app.run(main, lambda values: table.define(Options, values))
