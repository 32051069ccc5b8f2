"""A user's program with model.fit whose workers may come and go.

python -m terngrad.testing.programs.elastic_fit [OPTION...]

It prints each batch, and at the end the number of updates, the history and the weights.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time

import keras
import numpy as np
import tensorflow as tf

import terngrad
from terngrad.library.keras.optimizer import exchange_of

_ROWS, _BATCH = 480, 4


class Printing(keras.callbacks.Callback):
    """Prints where this worker is, makes steps slow, and may kill this worker."""

    def __init__(self, given: argparse.Namespace, rank: int) -> None:
        """Takes the options."""
        super().__init__()
        self._given, self._rank, self._epoch = given, rank, 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes the epoch; in the second one, workers wait for the slow one."""
        self._epoch = epoch
        print(f"epoch {epoch} begins", flush=True)
        is_slow = self._rank == self._given.slow_of
        waits = epoch == 1 and self._given.wait_file and not is_slow
        while waits and not os.path.exists(self._given.wait_file):
            time.sleep(0.05)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Lets worker 0 stop the training."""
        if self._rank == 0 and os.path.exists(self._given.stop_file):
            self.model.stop_training = True

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Prints the place and the number of updates."""
        updates = int(self.model.optimizer.iterations)
        print(f"epoch {self._epoch} batch {batch} updates {updates}", flush=True)
        time.sleep(self._given.pause_secs)
        while self._rank == self._given.slow_of and not os.path.exists(self._given.slow_file):
            time.sleep(0.05)

    def on_test_end(self, logs: dict | None = None) -> None:
        """Kills this worker where the others wait for its metrics."""
        if self._rank == self._given.die_of and self._epoch == 0:
            print("dies", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Trains."""
    options = argparse.ArgumentParser()
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--timeout_secs", type=float, default=60.0)
    options.add_argument("--replicas", type=int, help="num_replicas_to_aggregate, not elastic ...")
    options.add_argument("--elastic", action="store_true", help="... but with this")
    options.add_argument("--pause_secs", type=float, default=0.02, help="after each batch")
    options.add_argument("--slow_of", type=int, default=-1, help="worker that pauses ...")
    options.add_argument("--slow_file", default="", help="... after a batch until this exists")
    options.add_argument("--wait_file", default="", help="the others wait for it in epoch 1")
    options.add_argument("--die_of", type=int, default=-1, help="worker that dies in a validation")
    options.add_argument("--scaling", default="none")
    options.add_argument("--sum_codec", default="exact")
    options.add_argument("--unknown", action="store_true", help="Keras does not know the batches")
    options.add_argument("--stop_file", default="", help="training stops when it exists")
    options.add_argument("--fits", type=int, default=1)
    options.add_argument("--backup", default="", help="folder of BackupAndRestore")
    given = options.parse_args()

    terngrad.configure()
    group = terngrad.join(
        elastic=given.replicas is None or given.elastic,
        num_replicas_to_aggregate=given.replicas,
        timeout_secs=given.timeout_secs,
    )
    keras.utils.set_random_seed(1 + group.rank)  # the chief's weights count
    draw = np.random.default_rng(7)
    x = draw.normal(size=(_ROWS, 6)).astype("float32")
    y = (x[:, :3].sum(1) > 0).astype("int32")
    data = group.shard((x, y), reshuffle=1).batch(_BATCH, drop_remainder=True)
    if given.unknown:
        data = data.filter(lambda *batch: True)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(2),
        ]
    )
    optimizer = terngrad.keras.distribute(
        keras.optimizers.Adam(0.01),
        group,
        gradients="ternary",
        seed=3,
        sum_codec=given.sum_codec,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    callbacks = [terngrad.keras.DistributedCallback(group, learning_rate_scaling=given.scaling)]
    callbacks += [Printing(given, group.rank)]
    callbacks += [keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (1 + epoch))]
    if given.backup:
        callbacks.append(keras.callbacks.BackupAndRestore(given.backup))
    histories = []
    with group:
        for _ in range(given.fits):
            found = model.fit(
                data,
                epochs=given.epochs,
                verbose=0,
                callbacks=callbacks,
                validation_data=(x[:40], y[:40]),
            )
            histories.append({"epoch": found.epoch, **found.history})
    print(f"history {json.dumps(histories)}")
    if (factor := exchange_of(optimizer).rate_factor) is not None:
        print(f"factor {float(factor):.4f}")
    weights = b"".join(tf.convert_to_tensor(v).numpy().tobytes() for v in model.weights)
    print(f"updates {int(optimizer.iterations)} weights {weights.hex()}", flush=True)


if __name__ == "__main__":
    main()
