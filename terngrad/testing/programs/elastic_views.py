"""The loop of `elastic_loop` in one process, with views that are given.

    python -m terngrad.testing.programs.elastic_views STEPS VALUES SUM_CODEC FIRST:NODES ...

From step FIRST on the first NODES nodes make the steps, with a new memory. It prints a digest of
the weights after each step.
"""

import sys

import tensorflow as tf

import terngrad
from terngrad.testing.elastic_steps import digest_of, gradient_of


def main(steps: int, values: int, sum_codec: str, *views: str) -> None:
    """Makes steps."""
    terngrad.configure()
    group = terngrad.join()
    weights = tf.Variable(tf.range(float(values)))
    given = [tuple(map(int, view.split(":"))) for view in views]
    for (first, nodes), (end, _) in zip(given, [*given[1:], (steps, 0)], strict=True):
        settings = {"gradients": "ternary", "nodes": nodes, "sum_codec": sum_codec}
        reducer = terngrad.Reducer([weights], group, **settings)
        reducer.state.step.assign(first)

        @tf.function
        def step(reducer: terngrad.Reducer = reducer, nodes: int = nodes) -> None:
            gradients = [[gradient_of(reducer.state.step, node, values)] for node in range(nodes)]
            (mean,) = reducer(gradients if nodes > 1 else gradients[0])
            weights.assign_sub(0.1 * mean)

        while int(reducer.state.step) < end:
            step()
            print(digest_of(int(reducer.state.step), weights), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
