"""A loop of a user's own with local steps.

python -m terngrad.testing.programs.own_local_steps FOLDER STEPS FRAGMENTS OVERLAP

Each process writes its weights after each exchange to a file of the folder. With an OVERLAP of 1 it
writes the shared weights, from which its own then differ.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import terngrad
from terngrad.testing import nets

LOCAL_STEPS = 3


def main() -> None:
    """Trains."""
    folder, steps, fragments, overlap = sys.argv[1], *map(int, sys.argv[2:])
    terngrad.configure()
    group = terngrad.join(timeout_secs=60.0)
    tf.keras.utils.set_random_seed(1 + group.rank)  # the chief's parameters count
    model = nets.make_model(batch_norm=True)
    if not group.is_chief:
        model.trainable_variables[0].assign_add(tf.ones_like(model.trainable_variables[0]))
    optimizer = tf.keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    local = terngrad.LocalSteps(
        model.trainable_variables,
        group,
        steps=LOCAL_STEPS,
        fragments=fragments,
        overlap=bool(overlap),
        averaged=model.non_trainable_weights,
        gradients="ternary-feedback",
    )

    @tf.function
    def train(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    found = {}
    for i, (images, labels) in enumerate(nets.make_batches().take(steps), 1):
        train(images[group.rank :: group.size], labels[group.rank :: group.size])
        exchanged = local.step()
        if i == steps:
            local.exchange()
        if overlap:
            assert i == steps or exchanged == (i % (LOCAL_STEPS // fragments) == 0)
            shared = local.state.shared if exchanged else []
            found |= {f"{i} {number}": v.numpy() for number, v in enumerate(shared)}
            continue
        seen = {v.path: group.all_gather(v.numpy()) for v in model.trainable_variables}
        equal = {name for name, (one, other) in seen.items() if np.array_equal(one, other)}
        assert bool(equal) == exchanged
        assert len(equal) < len(seen) or i == steps or fragments == 1
        if exchanged:
            equal |= {v.path for v in model.non_trainable_weights}
        found |= {f"{i} {v.path}": v.numpy() for v in model.variables if v.path in equal}
    np.savez(f"{folder}/{group.rank}.npz", **found)
    print(f"{group.label} sent {local.bytes_sent} bytes in {int(local.state.reducer.step)}.")
    group.barrier()


if __name__ == "__main__":
    main()
