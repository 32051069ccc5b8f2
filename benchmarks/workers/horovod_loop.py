"""One process of a training with Horovod elastic that prints each step, for fault_benchmark.py.

horovodrun ... python horovod_loop.py FOLDER VALUES PAUSE_MS

It writes to the pipe FOLDER/HOST, which is of this process alone: horovodrun's own output mixes
those of all processes, and names them by a rank that they may no longer have.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import horovod.tensorflow as hvd
import tensorflow as tf


def train(values: int, pause_secs: float, output: IO[str]) -> None:
    """Trains until it is killed; a step exchanges `values` random gradient values, with momentum.

    Horovod's states of variables do not work here: the one for TensorFlow sends a new worker the
    weights in graphs of TensorFlow 1 only, and the one for Keras calls an attribute that is a list
    in Keras 3.
    """
    hvd.init()
    gradient = tf.random.stateless_normal([values], [hvd.rank(), values])

    @tf.function
    def step(weight: tf.Tensor, velocity: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # Horovod takes an error for a lost worker only if it names this operation.
        mean = hvd.allreduce(gradient, name="HorovodAllreduce_gradient")
        velocity = 0.9 * velocity + mean
        return weight - 0.01 * velocity, velocity

    @hvd.elastic.run
    def make_steps(state: hvd.elastic.ObjectState) -> None:
        print(f"process {os.getpid()} has rank {hvd.rank()}", file=output, flush=True)
        while True:
            state.weight, state.velocity = step(state.weight, state.velocity)
            state.step += 1
            state.commit()
            print(f"step {state.step}", file=output, flush=True)
            time.sleep(pause_secs)

    start = {"weight": tf.zeros(values), "velocity": tf.zeros(values), "step": 0}
    make_steps(hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, **start))


def main(arguments: Sequence[str]) -> None:
    """Runs the process that the command line describes."""
    folder, values, pause_ms = arguments
    with Path(folder, os.environ["HOROVOD_HOSTNAME"]).open("w") as output:
        train(int(values), float(pause_ms) / 1000, output)


if __name__ == "__main__":
    main(sys.argv[1:])
