"""How long does a training step take?

Compares float gradients on one node with a minimal hand-written tf.function loop on the same net,
and ternary with float gradients on 1, 2 and 4 nodes. The input is synthetic.

python -m benchmarks.training_benchmark --json=figures.json
"""

import dataclasses
from collections.abc import Sequence

import keras
import tensorflow as tf

from benchmarks import report, timing
from benchmarks.report import names_flag
from benchmarks.timing import Comparison, Times, Variant, ratio
from inception.flags.configs import TrainConfig
from inception.training import preparation
from inception.training.problem import problem_of
from slim.nets import catalog, nets_factory

_PROBLEMS = {  # net -> data set, images in a step, numbers of nodes
    "lenet_slim": ("mnist", 64, (1, 2, 4)),
    "cifar10_alexnet": ("cifar10", 128, (1, 2, 4)),
    "alexnet": ("imagenet", 32, (1,)),
    "vgg_16": ("imagenet", 32, (1,)),
    "inception_v3": ("imagenet", 32, (1,)),
    "resnet_v1_50": ("imagenet", 32, (1,)),
}
_SMALL = ("lenet_slim", "cifar10_alexnet")
_BY_HAND = "hand-written"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(timing.Options):
    nets: tuple[str, ...] = names_flag("Training", tuple(_PROBLEMS), "nets to measure", _SMALL)


def main(options: _Options) -> None:
    """Measures each net."""
    tf.get_logger().setLevel("ERROR")  # it mistakes the number of variants for retracing and warns
    timing.configure(options, deterministic=options.deterministic)
    comparisons = []
    for net in options.nets:
        dataset, batch_size, nodes = _PROBLEMS[net]
        config = TrainConfig(
            dataset_name=dataset,
            net=net,
            batch_size=batch_size,
            clip_factor=2.5,
            quantize_logits=True,
        )
        times = timing.alternate(_variants(config, nodes), options)
        ratios = _ratios(times, nodes)
        comparisons.append(Comparison(f"{net}, batch {batch_size}", times, ratios))
        comparisons[-1].print()
    timing.finish(comparisons, options)


def _variants(config: TrainConfig, numbers: Sequence[int]) -> dict[str, Variant]:
    batches = preparation.training_batches(config, problem_of(config), None, 0)
    variants = {_BY_HAND: _loop_by_hand(config, *next(iter(batches)))}
    for nodes in numbers:
        for name, bits in (("float", 32), ("ternary", 1)):
            chosen = dataclasses.replace(config, num_nodes=nodes, grad_bits=bits)
            variants[f"{name} x {nodes}"] = timing.suite_variant(chosen, batches)
    return variants


def _loop_by_hand(config: TrainConfig, images: tf.Tensor, labels: tf.Tensor) -> Variant:
    model = nets_factory.build_net(
        config.net,
        num_classes=problem_of(config).num_classes,
        weight_decay=config.weight_decay,
        dropout_keep_prob=config.dropout_keep_prob,
    )
    weights = catalog.get_spec(config.net).auxiliary_weights
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(config.initial_learning_rate, config.momentum)

    @tf.function
    def step() -> None:
        seed = tf.stack([1, tf.cast(optimizer.iterations, tf.int32)])
        inputs = [images, seed] if len(model.inputs) == 2 else images
        with tf.GradientTape() as tape:
            logits, *auxiliary = tf.nest.flatten(model(inputs, training=True))
            loss = entropy(labels, logits) + sum(model.losses)
            for weight, head in zip(weights, auxiliary, strict=True):
                loss += weight * entropy(labels, head)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    def run(count: int) -> None:
        for _ in range(count):
            step()

    return run


def _ratios(times: Times, numbers: Sequence[int]) -> dict[str, float]:
    ratios = {"images/s, float x 1 to hand-written": ratio(times.wall, _BY_HAND, "float x 1")}
    cpu = {"CPU time, float x 1 to hand-written": ratio(times.cpu, "float x 1", _BY_HAND)}
    for nodes in numbers:
        variants = (f"ternary x {nodes}", f"float x {nodes}")
        ratios[f"ms/step, ternary to float x {nodes}"] = ratio(times.wall, *variants)
        cpu[f"CPU time, ternary to float x {nodes}"] = ratio(times.cpu, *variants)
    return ratios | cpu


if __name__ == "__main__":
    report.run(main, _Options)
