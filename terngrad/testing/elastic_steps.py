"""Steps of a user's own loop, whose gradient depends on the step and the node only."""

from __future__ import annotations

import time
import zlib

import tensorflow as tf

from terngrad.library.joining import join
from terngrad.library.reducer import Reducer
from terngrad.training import runtime

VALUES = 64


def gradient_of(step: tf.Tensor, node: int, values: int = VALUES) -> tf.Tensor:
    """Returns the gradient of a node at a step, float32 [values]."""
    return tf.sin(tf.cast(step, tf.float32) + tf.range(float(values)) * (node + 1))


def digest_of(step: int, weights: tf.Variable) -> str:
    """Returns a line with a digest of the weights after a step."""
    return f"digest {step} {zlib.crc32(weights.numpy().tobytes()):08x}"


def train(steps: int, *given: str) -> None:
    """Makes steps, with the arguments of elastic_loop.py, and prints the weights at the end."""
    arguments = {name: int(number) for name, _, number in (each.partition("=") for each in given)}
    nodes, has_digests = arguments.pop("nodes", 1), arguments.pop("digests", 0)
    values, slots = arguments.pop("values", VALUES), arguments.pop("slots", 0)
    sum_codec = "ternary" if arguments.pop("codes_sums", 0) else "exact"
    runtime.configure()
    group = join(**arguments)
    weights = tf.Variable(tf.range(float(values)))
    reducer = Reducer([weights], group, gradients="ternary", nodes=nodes, sum_codec=sum_codec)
    state = [reducer.state.step, weights, *(tf.Variable(tf.zeros(values)) for _ in range(slots))]

    @tf.function
    def step() -> None:
        own = range(group.rank * nodes, (group.rank + 1) * nodes)
        gradients = [[gradient_of(reducer.state.step, node, values)] for node in own]
        (mean,) = reducer(gradients if nodes > 1 else gradients[0])
        weights.assign_sub(0.1 * mean)

    def make_step() -> None:
        step()
        if has_digests:
            print(digest_of(int(reducer.state.step), weights), flush=True)
        print(f"step {int(reducer.state.step)}", flush=True)
        time.sleep(0.02 if group.size > 1 else 0)

    with group:
        group.run_steps(make_step, steps, state)
    print(f"weights {weights.numpy().tobytes().hex()}", flush=True)
