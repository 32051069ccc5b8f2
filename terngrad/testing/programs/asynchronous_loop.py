"""An asynchronous loop of a user's own.

python -m terngrad.testing.programs.asynchronous_loop FOLDER STEPS

Its gradient depends on the weights and the step only. It prints each step.
"""

import sys
import time

import tensorflow as tf

import terngrad


def main(folder: str, steps: str) -> None:
    """Makes steps until all workers together have made so many."""
    held = terngrad.Asynchronous(folder=folder, snapshot_steps=5)
    group = terngrad.join(asynchronous=held)
    weights = tf.Variable(tf.range(64.0))
    training = terngrad.AsynchronousTraining(
        [weights],
        group,
        optimizer="adam",
        learning_rate=0.01,
        max_steps=int(steps),
        gradients="ternary",
    )

    @tf.function
    def step() -> None:
        training.apply([0.1 * weights + tf.sin(tf.cast(training.state.step, tf.float32))])

    with training:
        print(f"begins at {int(training.state.step)}", flush=True)
        while not training.is_over:
            step()
            print(f"step {int(training.state.step)}", flush=True)
            time.sleep(0.05)
    print(f"ends at {int(training.state.step)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
