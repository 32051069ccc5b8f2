"""Two nets with a reducer each, called twice and in loops.

python -m terngrad.testing.programs.two_nets
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import terngrad

_SHAPE = [300, 40]


def main() -> None:
    """Raises AssertionError if a mean is wrong."""
    group = terngrad.join(timeout_secs=20.0)
    assert group.size == 2
    nets = [[tf.Variable(tf.fill(_SHAPE, 1.0 + group.rank))] for _ in range(2)]
    first, second = (terngrad.Reducer(net, group, gradients="float32") for net in nets)
    assert nets[0][0].numpy().max() == 1.0  # the chief's

    @tf.function
    def thrice(value):
        means = first([tf.fill(_SHAPE, value)])
        means += second([tf.fill(_SHAPE, 10.0 * value)])
        means += first([tf.fill(_SHAPE, 100.0 * value)])
        return [mean[0, 0] for mean in means]

    @tf.function
    def looped(steps):
        total = tf.zeros([])
        for step in tf.range(steps):
            (mean,) = first([tf.fill(_SHAPE, tf.cast(step, tf.float32) * (1.0 + group.rank))])
            total += mean[0, 0]
        return total

    for i in range(3):
        means = [float(mean) for mean in thrice(tf.constant(float(i + group.rank)))]
        assert means == [i + 0.5, 10 * (i + 0.5), 100 * (i + 0.5)], means
    assert float(looped(tf.constant(5))) == 15.0
    assert int(first.state.step) == 11

    kinds = (tf.uint32, tf.bool, tf.bfloat16, tf.int64)
    held = [tf.Variable(tf.cast([group.rank, 1], kind)) for kind in kinds]
    group.broadcast(held)
    assert [int(tf.cast(v[0], tf.int32)) for v in held] == [0] * len(kinds)
    assert group.all_gather(np.float64([group.rank, 7])).tolist() == [[0, 7], [1, 7]]
    for i in range(70):  # more than a ps has names for
        group.barrier()
        assert group.all_gather(np.zeros(i)).shape == (2, i)
    try:
        terngrad.Reducer(nets[0], group, seed=group.rank)
    except terngrad.MembershipError as error:
        print(error)


if __name__ == "__main__":
    main()
