"""A loop of a user's own whose processes may come and go.

python -m terngrad.testing.programs.elastic_loop STEPS [ARGUMENT=NUMBER...]

The arguments are of `join`. It follows a gradient that depends on the
step and the node only, and prints the weights at the end.
"""

import sys
import time

import tensorflow as tf

import terngrad


def main(steps: int, *given: str) -> None:
    """Makes steps."""
    arguments = {name: int(number) for name, _, number in (each.partition("=") for each in given)}
    nodes = arguments.pop("nodes", 1)
    terngrad.configure()
    group = terngrad.join(**arguments)
    weights = tf.Variable(tf.range(64.0))
    reducer = terngrad.Reducer([weights], group, nodes=nodes)

    @tf.function
    def step() -> None:
        first = tf.cast(reducer.state.step, tf.float32)
        gradients = [
            [tf.sin(first + tf.range(64.0) * (group.rank * nodes + node + 1))]
            for node in range(nodes)
        ]
        (mean,) = reducer(gradients if nodes > 1 else gradients[0])
        weights.assign_sub(0.1 * mean)

    def make_step() -> None:
        step()
        print(f"step {int(reducer.state.step)}", flush=True)
        time.sleep(0.02 if group.size > 1 else 0)

    with group:
        group.run_steps(make_step, steps, [reducer.state.step, weights])
    print(f"weights {weights.numpy().tobytes().hex()}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
