"""A user's program with model.fit: python -m terngrad.testing.programs.fit FOLDER [OPTION...].

It writes the weights, the history and the number of updates to FOLDER/RANK.npz, and what the
callbacks write to FOLDER/RANK.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import terngrad
from terngrad.testing import nets

_STEPS = 4  # of an epoch
_CHECKPOINT = "{epoch}-{val_loss:.2f}.keras"
_PAUSES = {
    "die": lambda model: os.kill(os.getpid(), signal.SIGKILL),
    "interrupt": lambda model: os.kill(os.getpid(), signal.SIGTERM),
    "ctrl c": lambda model: os.kill(os.getpid(), signal.SIGINT),
    "hang up": lambda model: os.kill(os.getpid(), signal.SIGHUP),
    "hang": lambda model: print("hangs", flush=True) or os.kill(os.getpid(), signal.SIGSTOP),
}


class _Pause(keras.callbacks.Callback):
    """Does something on worker 1 after the sixth batch."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._batches += 1
        if self._batches == _STEPS + 2:
            _PAUSES[self._kind](self.model)


def main() -> None:
    """Trains."""
    options = argparse.ArgumentParser()
    options.add_argument("folder")
    options.add_argument("--gradients", default="ternary")
    options.add_argument("--scale_by", default="variable")
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--nodes", type=int, default=1, help="nodes of this process")
    options.add_argument("--pause", choices=_PAUSES, help="what worker 1 does after six batches")
    options.add_argument("--backup", default="", help="folder of BackupAndRestore")
    options.add_argument("--chiefs_backup", action="store_true", help="only the chief has it")
    options.add_argument("--batch_norm", action="store_true")
    options.add_argument("--dropout", action="store_true")
    options.add_argument("--plateau", action="store_true", help="lower the rate after an epoch")
    options.add_argument("--short", action="store_true", help="worker 1 has a batch less")
    given = options.parse_args()

    terngrad.configure()
    group = terngrad.join(timeout_secs=12.0)
    keras.utils.set_random_seed(1 + group.rank)  # the chief's weights count
    model = nets.make_model(given.batch_norm)
    if given.dropout:
        layers = [keras.Input(model.input_shape[1:]), keras.layers.Dropout(0.2), model]
        model = keras.Sequential(layers)
    if not group.is_chief:
        model.set_weights([w + 1 for w in model.get_weights()])
    images, labels = (
        tf.concat(list(part), 0) for part in zip(*nets.make_batches().take(_STEPS), strict=True)
    )
    optimizer = keras.optimizers.Adam(0.01, clipnorm=1.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    path = os.path.join(given.folder, str(group.rank))
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = group.shard(dataset).batch(nets.BATCH // group.size)
    if given.short:  # so that Keras does not know the lengths before
        dataset = dataset.take(_STEPS - group.rank).filter(lambda *batch: True)
    settings = {"gradients": given.gradients, "scale_by": given.scale_by, "nodes": given.nodes}
    optimizer = terngrad.keras.distribute(optimizer, group, seed=3, **settings)
    model.compile(optimizer, loss, metrics=["accuracy"])
    validation = (images[:8], labels[:8]) if group.is_chief else None
    history = model.fit(
        dataset,
        epochs=given.epochs,
        verbose=0,
        callbacks=callbacks(group, path, given),
        validation_data=validation,
    ).history
    arrays = {f"w{i}": w for i, w in enumerate(model.get_weights())}
    np.savez(f"{path}.npz", updates=int(optimizer.iterations), **arrays, **history)
    group.barrier()


def callbacks(group, path, given):
    """Returns callbacks that write, and one that stops worker 1."""
    writers = [
        keras.callbacks.ModelCheckpoint(os.path.join(path, _CHECKPOINT), save_freq=100),
        keras.callbacks.CSVLogger(f"{path}.csv"),
        terngrad.keras.DistributedCallback(group),
        keras.callbacks.TensorBoard(os.path.join(path, "board")),
    ]
    if given.plateau:
        writers.append(keras.callbacks.ReduceLROnPlateau("loss", min_delta=99.0, patience=1))
    if given.backup and (group.is_chief or not given.chiefs_backup):
        writers.append(keras.callbacks.BackupAndRestore(given.backup))
    if given.pause and group.rank == 1:
        writers.append(_Pause(given.pause))
    return writers


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # of Ctrl-C, by DistributedCallback
        sys.exit(128 + signal.SIGINT)
