"""A user's program with model.fit: python -m terngrad.testing.fit FOLDER [OPTION...].

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
    "stop": lambda model: setattr(model, "stop_training", True),
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


def _layers() -> list[keras.layers.Layer]:
    """Returns layers that have no weights before their first batch."""
    return [
        keras.layers.Flatten(),
        keras.layers.Dense(8, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(10),
    ]


class Called(keras.Model):
    """A subclassed model."""

    def __init__(self) -> None:
        super().__init__()
        self._net = keras.Sequential(_layers())

    def call(self, images: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return self._net(images, training=training)


class Stepping(keras.Model):
    """A model that only its own train_step can build."""

    def __init__(self) -> None:
        super().__init__()
        self._net = keras.Sequential(_layers())

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        images, labels = data
        with tf.GradientTape() as tape:
            logits = self._net(images, training=True)
            loss = self.compute_loss(images, labels, logits)
        weights = self._net.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


_UNBUILT = {
    "call": Called,
    "sequential": lambda: keras.Sequential(_layers()),
    "train_step": Stepping,
}


def main() -> None:
    """Trains."""
    options = argparse.ArgumentParser()
    options.add_argument("folder")
    options.add_argument("--gradients", default="ternary")
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--steps", type=int, default=_STEPS)
    options.add_argument("--nodes", type=int, default=1, help="nodes of this process")
    options.add_argument("--by_hand", action="store_true", help="a loop of one's own")
    options.add_argument("--pause", choices=_PAUSES, help="what worker 1 does after six batches")
    options.add_argument("--backup", default="", help="folder of BackupAndRestore")
    options.add_argument("--batch_norm", action="store_true")
    options.add_argument("--dropout", action="store_true")
    options.add_argument("--unbuilt", choices=_UNBUILT, help="a model without weights at first")
    options.add_argument("--sgd", action="store_true", help="in the place of Adam")
    options.add_argument("--plateau", action="store_true", help="lower the rate after an epoch")
    options.add_argument("--other_rate", action="store_true", help="worker 1 has another rate")
    options.add_argument("--short", action="store_true", help="worker 1 has a batch less")
    given = options.parse_args()

    terngrad.configure()
    group = terngrad.join(timeout_secs=12.0)
    keras.utils.set_random_seed(1 + group.rank)  # the chief's weights count
    make = _UNBUILT.get(given.unbuilt)
    model = make() if make else nets.make_model(given.batch_norm)
    if given.dropout:
        layers = [keras.Input(model.input_shape[1:]), keras.layers.Dropout(0.2), model]
        model = keras.Sequential(layers)
    if not group.is_chief and not given.unbuilt:
        model.set_weights([w + 1 for w in model.get_weights()])
    images, labels = (
        tf.concat(list(part), 0)
        for part in zip(*nets.make_batches().take(given.steps), strict=True)
    )
    # Adam's first update hardly depends on the size of a gradient.
    rate = 0.02 if given.other_rate and group.rank else 0.01
    optimizer = (
        keras.optimizers.SGD(0.1) if given.sgd else keras.optimizers.Adam(rate, clipnorm=1.0)
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    path = os.path.join(given.folder, str(group.rank))
    if given.by_hand:
        by_hand(model, optimizer, loss, images, labels, given)
        history = {}
    else:
        dataset = tf.data.Dataset.from_tensor_slices((images, labels))
        dataset = group.shard(dataset).batch(nets.BATCH // group.size)
        if given.short:  # so that Keras does not know the lengths before
            dataset = dataset.take(given.steps - group.rank).filter(lambda *batch: True)
        optimizer = terngrad.keras.distribute(
            optimizer, group, gradients=given.gradients, seed=3, nodes=given.nodes
        )
        metrics = None if given.unbuilt == "train_step" else ["accuracy"]
        model.compile(optimizer, loss, metrics=metrics)
        validation = (images[:8], labels[:8]) if group.is_chief and metrics else None
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
        terngrad.keras.Together(group),
        keras.callbacks.TensorBoard(os.path.join(path, "board")),
    ]
    if given.plateau:
        writers.append(keras.callbacks.ReduceLROnPlateau("loss", min_delta=99.0, patience=1))
    if given.backup:
        writers.append(keras.callbacks.BackupAndRestore(given.backup))
    if given.pause and group.rank == 1:
        writers.append(_Pause(given.pause))
    return writers


def by_hand(model, optimizer, loss, images, labels, given):
    """Makes the same steps with the gradients of nodes that this process computes."""
    group = terngrad.Group()
    reducer = terngrad.Reducer(
        model.trainable_variables,
        group,
        gradients=given.gradients,
        clip_factor=2.5,
        seed=3,
        nodes=given.nodes,
    )

    def gradients(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        return tape.gradient(value, model.trainable_variables)

    @tf.function
    def step(x, y):
        found = [gradients(x[n :: given.nodes], y[n :: given.nodes]) for n in range(given.nodes)]
        means = reducer(found if given.nodes > 1 else found[0])
        optimizer.apply(means, model.trainable_variables)

    for _ in range(given.epochs):
        for i in range(given.steps):
            batch = slice(i * nets.BATCH, (i + 1) * nets.BATCH)
            step(images[batch], labels[batch])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # of Ctrl-C, by Together
        sys.exit(128 + signal.SIGINT)
