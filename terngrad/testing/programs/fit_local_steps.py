"""Calls of model.fit with local steps, on two workers.

python -m terngrad.testing.programs.fit_local_steps FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import warnings

import keras
import numpy as np
import tensorflow as tf

import terngrad

_BATCHES, _BATCH, _EPOCHS = 7, 4, 2


def main() -> None:
    """Raises AssertionError if the workers do not train as they should."""
    group = terngrad.join(timeout_secs=20.0)
    assert group.size == 2
    for settings in ({"steps": 3}, {"steps": 4, "fragments": 2, "overlap": True}):
        trained_as_in_a_loop(group, settings)
    several_steps_an_execution(group)
    check_metrics_and_files(group, sys.argv[1])
    stopped_by_one(group)
    stopped_by_a_signal(group)
    resumed(group, os.path.join(sys.argv[1], "backup"))
    try:
        fit(group, make_model(group), [], data=slices(group).take(5 - group.rank), steps=2)
    except terngrad.MembershipError as error:
        print(error)


def make_model(group, dropout=0.0, **settings):
    """Returns a compiled model; the chief's weights count."""
    keras.utils.set_random_seed(1 + group.rank)
    layers = [
        keras.layers.Dense(4, "tanh"),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.Dropout(dropout),
        keras.layers.Dense(2),
    ]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.Adam(0.05), "mse", run_eagerly=True, **settings)
    return model


def arrays(group):
    """Returns this worker's data."""
    draw = np.random.default_rng(group.rank)
    rows = _BATCHES * _BATCH
    return draw.normal(size=(rows, 3)).astype("f"), draw.normal(size=(rows, 2)).astype("f")


def slices(group):
    """Returns them in batches, of which Keras does not know the number."""
    return tf.data.Dataset.from_tensor_slices(arrays(group)).batch(_BATCH).filter(lambda *_: True)


def fit(group, model, callbacks, data=None, epochs=_EPOCHS, steps=3, validation=None, **settings):
    """Trains with local steps; returns the history."""
    local = terngrad.keras.LocalSteps(group, steps=steps, **{"gradients": "ternary"} | settings)
    x, y = arrays(group) if data is None else (data, None)
    size = _BATCH if data is None else None
    given = {"batch_size": size, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(
        x, y, callbacks=[local, *callbacks], validation_data=validation, **given
    ).history


def assert_equal_on_all(group, model):
    """Both workers have the same weights, bit for bit."""
    for variable in model.weights:
        first, second = group.all_gather(variable.numpy())
        np.testing.assert_array_equal(first, second, variable.path)


def assert_equal(model, other):
    """Two models have the same weights, bit for bit."""
    for own, value in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(own.numpy(), value.numpy(), own.path)


def trained_as_in_a_loop(group, settings):
    """The weights of fit, and moving statistics, are those of a loop with the same batches."""
    model = make_model(group)
    fit(group, model, [], slices(group), gradients="5-level-feedback", **settings)
    assert_equal_on_all(group, model)
    assert int(model.optimizer.iterations) == _EPOCHS * _BATCHES

    loop = make_model(group)
    statistics = loop.layers[1].non_trainable_weights
    local = terngrad.LocalSteps(
        loop.trainable_variables,
        group,
        averaged=statistics,
        gradients="5-level-feedback",
        **settings,
    )
    ends_with_all = len(settings) == 1  # neither fragments nor overlap
    for _ in range(_EPOCHS):
        for x, y in slices(group):
            loop.train_on_batch(x, y)
            exchanged = local.step()
        if not (exchanged and ends_with_all):
            local.exchange()
    assert_equal(model, loop)


def several_steps_an_execution(group):
    """Steps are counted, not calls."""
    found = [make_model(group, steps_per_execution=count) for count in (1, 2)]
    for model in found:
        fit(group, model, [], steps=4)
    assert_equal(*found)
    assert_equal_on_all(group, found[1])


def check_metrics_and_files(group, folder):
    """All see mean metrics of the weights that all share, and only the chief writes."""
    model, seen = make_model(group), []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(model.get_weights())
    )
    path = os.path.join(folder, f"{group.rank} {{epoch}}.weights.h5")
    checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    mine = {"validation": arrays(group)} if group.is_chief else {}
    history = fit(group, model, [checkpoint, note], **mine)
    for name in ("loss", "val_loss", "bytes_sent", "bits_per_parameter"):
        first, second = group.all_gather(np.array(history[name]))
        np.testing.assert_array_equal(first, second, name)
    assert 0 < history["bytes_sent"][0] < history["bytes_sent"][1]
    found = model.evaluate(*arrays(group), _BATCH, verbose=0)
    assert group.rank or abs(found - history["val_loss"][1]) < 1e-6
    for weights in seen:
        for value in weights:
            np.testing.assert_array_equal(*group.all_gather(value))
    for epoch in range(1, _EPOCHS + 1):
        assert os.path.exists(path.format(epoch=epoch)) == group.is_chief


class _Acting(keras.callbacks.Callback):
    """Does something on worker 1 after the second step."""

    def __init__(self, act):
        super().__init__()
        self._act, self._rank = act, 0

    def of(self, group):
        """Returns this callback of a worker."""
        self._rank = group.rank
        return self

    def on_train_batch_end(self, batch, logs=None):
        if self._rank == 1 and self.model.optimizer.iterations == 2:
            self._act(self.model)


def stopped_by_one(group):
    """Both make the steps up to the next exchange; at an epoch's end both stop, too."""
    model = make_model(group)
    stop = _Acting(lambda model: setattr(model, "stop_training", True))
    fit(group, model, [stop.of(group)])
    assert int(model.optimizer.iterations) == 3
    assert_equal_on_all(group, model)

    early = keras.callbacks.EarlyStopping("loss", min_delta=99.0, patience=1)
    history = fit(group, make_model(group), [early] if group.rank else [], epochs=4)
    assert len(history["loss"]) == 2, history


def stopped_by_a_signal(group):
    """Both stop after the next exchange."""
    model = make_model(group)
    raising = _Acting(lambda model: os.kill(os.getpid(), signal.SIGTERM))
    try:
        fit(group, model, [raising.of(group)], steps=4, fragments=2)
    except SystemExit as error:
        assert error.code == 128 + signal.SIGTERM
    else:
        raise AssertionError("the signal stopped nothing")
    assert int(model.optimizer.iterations) == 4
    assert_equal_on_all(group, model)


class _Failing(keras.callbacks.Callback):
    """Fails on both workers in the second epoch."""

    def on_train_batch_begin(self, batch, logs=None):
        if self.model.optimizer.iterations == _BATCHES + 2:
            raise InterruptedError


def resumed(group, folder):
    """An interrupted fit ends with the bits of an undisturbed one; without files it goes on."""
    make = lambda: make_model(group, dropout=0.5)
    given = {"epochs": 3, "gradients": "5-level-feedback", "fragments": 3}
    whole = make()
    fit(group, whole, [], **given)
    for is_missing in (False, True):
        backup = lambda: keras.callbacks.BackupAndRestore(folder)
        try:
            fit(group, make(), [backup(), _Failing()], **given)
        except InterruptedError:
            group.barrier()
        own = f"{folder}-local/{group.rank}"
        if is_missing and group.rank:
            for name in os.listdir(own):
                os.remove(os.path.join(own, name))
        part = make()
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            history = fit(group, part, [backup()], **given)
        named = any("goes on with the optimizer of worker 0" in str(e.message) for e in shown)
        assert named == (is_missing and group.rank == 1), [str(e.message) for e in shown]
        assert len(history["loss"]) == 2
        assert_equal_on_all(group, part)
        if not is_missing:
            assert_equal(whole, part)
        group.barrier()
        assert not os.path.exists(own)


if __name__ == "__main__":
    main()
