"""One process of a training with terngrad that prints each step.

For fault_benchmark.py and elastic_soak.py.

python -m benchmarks.workers.terngrad_loop VALUES PAUSE_MS TIMEOUT_SECS [elastic] [checksums]
"""

import sys
import time
import zlib
from collections.abc import Sequence

import tensorflow as tf

import terngrad

_VARIABLE = 2_500_000  # values, at most


def main(
    values: int, pause_secs: float, timeout_secs: float, elastic: bool, checksums: bool
) -> None:
    """Trains until it is killed; a step exchanges `values` random gradient values, with momentum.

    All subtract the same means, so workers whose weights differ do not become equal again. The
    weights' share of the gradients keeps the weights small, so that their last digits show a
    difference.
    """
    terngrad.configure()
    group = terngrad.join(elastic=elastic, timeout_secs=timeout_secs)
    sizes = [min(_VARIABLE, values - begin) for begin in range(0, values, _VARIABLE)]
    weights = [tf.Variable(tf.zeros(size)) for size in sizes]
    velocities = [tf.Variable(tf.zeros(size)) for size in sizes]
    gradients = [tf.random.stateless_normal([size], [group.rank, size]) for size in sizes]
    reducer = terngrad.Reducer(weights, group, gradients="ternary")

    @tf.function
    def step() -> None:
        own = [g + 0.1 * weight for g, weight in zip(gradients, weights, strict=True)]
        for weight, velocity, mean in zip(weights, velocities, reducer(own), strict=True):
            velocity.assign(0.9 * velocity + mean)
            weight.assign_sub(0.01 * velocity)

    def make_step() -> None:
        step()
        found = f" {_checksum([*weights, *velocities])}" if checksums else ""
        print(f"step {int(reducer.state.step)}{found}", flush=True)
        time.sleep(pause_secs)

    step.get_concrete_function()  # before the others wait for this process
    with group:
        group.run_steps(make_step, 10**9, [reducer.state.step, *weights, *velocities])


def _checksum(variables: Sequence[tf.Variable]) -> str:
    found = 0
    for variable in variables:
        found = zlib.crc32(variable.numpy(), found)
    return f"{found:08x}"


def _read(arguments: Sequence[str]) -> None:
    values, pause_ms, timeout_secs, *options = arguments
    chosen = ("elastic" in options, "checksums" in options)
    main(int(values), float(pause_ms) / 1000, float(timeout_secs), *chosen)


if __name__ == "__main__":
    _read(sys.argv[1:])
