"""Calls of model.fit with many settings, on two workers.

python -m terngrad.testing.programs.fit_settings [--every_way]
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import tempfile
import warnings

import keras
import numpy as np
import tensorflow as tf

import terngrad

_BATCHES, _BATCH = 4, 8


def main() -> None:
    """Raises AssertionError if the workers do not train together."""
    group = terngrad.join(timeout_secs=20.0)
    assert group.size == 2
    keras.utils.set_random_seed(1 + group.rank)  # the chief's weights count

    usual, steps = trained(group)
    assert steps == 2 * _BATCHES
    for settings in ({"steps_per_execution": 2}, {"run_eagerly": True}):
        found, steps = trained(group, **settings)
        assert steps == 2 * _BATCHES
        for value, expected in zip(found, usual, strict=True):
            np.testing.assert_allclose(value, expected, atol=1e-5)

    stopped_by_one(group)
    for gradients in ("ternary", "float32"):
        overflowing(group, gradients)
    adversarial(group)
    for built_on in ((0, 1), (0,), (1,), ()):
        own_loop(group, built_on)
    several_in_own_loop(group)
    unbuilt(group)
    built_in_the_first_step(group)
    with tempfile.TemporaryDirectory() as folder:
        accumulated(group, os.path.join(folder, "backup"))
        group.barrier()  # the chief's folder is that of all
    changed_at_the_end(group)
    model = make_model(hidden=4 + group.rank)
    model.compile(distributed(group, keras.optimizers.SGD(0.1)), "mse")
    sharded_wrongly(group)
    evaluated(group)
    try:
        fit(group, model)
    except terngrad.MembershipError as error:
        print(error)
    try:  # no worker waits for the others any more
        group.barrier()
    except terngrad.MembershipError as error:
        assert "all have left each other: weights of the model" in str(error), error


def data(group):
    """Returns this worker's arrays."""
    draw = np.random.default_rng(group.rank)
    return draw.normal(size=(_BATCHES * _BATCH, 3)), draw.normal(size=(_BATCHES * _BATCH, 2))


def make_model(units=2, hidden=4):
    """Returns a model with random weights."""
    layers = [keras.layers.Dense(hidden, "tanh"), keras.layers.Dense(units)]
    return keras.Sequential([keras.Input((3,)), *layers])


def distributed(group, optimizer, gradients="float32"):
    """Returns a distributed optimizer."""
    return terngrad.keras.distribute(optimizer, group, gradients=gradients)


def fit(group, model, epochs=1, callbacks=(), factor=1.0, **settings):
    """Trains on this worker's data, with its first batch times a factor."""
    x, y = data(group)
    x[:_BATCH] *= factor
    callbacks = [*callbacks, terngrad.keras.DistributedCallback(group)]
    given = {"batch_size": _BATCH, "shuffle": False, "verbose": 0} | settings
    return model.fit(x, y, epochs=epochs, callbacks=callbacks, **given)


def assert_together(group, model):
    """Both workers have the same weights."""
    for variable in model.weights:
        first, second = group.all_gather(variable.numpy())
        np.testing.assert_array_equal(first, second)


def trained(group, **settings):
    """Trains two epochs from known weights; returns the weights and the number of updates."""
    model = make_model()
    model.set_weights([np.full(v.shape, 0.1 * (i + 1)) for i, v in enumerate(model.weights)])
    model.compile(distributed(group, keras.optimizers.Adam(0.1)), "mse", **settings)
    fit(group, model, epochs=2)
    assert_together(group, model)
    return model.get_weights(), int(model.optimizer.iterations)


def stopped_by_one(group):
    """Only worker 1 validates, and only worker 1 stops early."""
    model = make_model()
    model.compile(distributed(group, keras.optimizers.SGD(0.1)), "mse")
    stopping = keras.callbacks.EarlyStopping("val_loss", min_delta=10.0)
    mine = {"callbacks": [stopping], "validation_data": data(group)} if group.rank else {}
    history = fit(group, model, epochs=5, **mine).history
    assert len(history["loss"]) == len(history["val_loss"]) == 2, history
    first, second = group.all_gather(np.array(history["val_loss"]))
    np.testing.assert_array_equal(first, second)


def overflowing(group, gradients):
    """In mixed float16 both workers skip the step for which one has no finite gradients."""
    policy = keras.DTypePolicy("mixed_float16")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype=policy)])
    model.dtype_policy = policy
    model.compile(distributed(group, keras.optimizers.SGD(0.1), gradients), "mse")
    optimizer = model.optimizer
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    fit(group, model, factor=1e6 if group.rank else 1.0)  # beyond float16
    assert int(optimizer.inner_optimizer.iterations) == _BATCHES - 1
    fit(group, model)  # parameter servers must not be asked for a step of before
    assert int(optimizer.inner_optimizer.iterations) == 2 * _BATCHES - 1
    assert float(optimizer.dynamic_scale) == optimizer.initial_scale / 2
    assert all(np.isfinite(value).all() for value in model.get_weights())
    assert_together(group, model)


def sharded_wrongly(group):
    """Arrays in another order on each worker, and a missing shard, cause warnings."""
    whole = np.random.default_rng(7).normal(size=(2 * _BATCH, 5))
    mixed = np.random.default_rng(group.rank).permutation(whole)
    cases = [
        (group.shard(mixed), "(call 1) other data, the same in another order"),
        (whole, "all workers train on the same data, instead of a share each"),
    ]
    for rows, why in cases:
        model = make_model()
        model.compile(distributed(group, keras.optimizers.SGD(0.1)), "mse")
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            callback = terngrad.keras.DistributedCallback(group)
            model.fit(rows[:, :3], rows[:, 3:], batch_size=_BATCH, verbose=0, callbacks=[callback])
        assert any(why in str(each.message) for each in shown) == group.is_chief, why


def evaluated(group):
    """Evaluation and prediction of all workers are those of one."""
    draw = np.random.default_rng(7)
    x, y = draw.normal(size=(21, 3)), draw.integers(0, 2, (21, 1))
    model = make_model(units=1)
    model.compile(loss="mse", metrics=[keras.metrics.AUC(from_logits=True), "mae"])
    group.broadcast(model.weights)
    found = terngrad.keras.evaluate(model, (x, y), group, batch_size=4)
    np.testing.assert_allclose(found, model.evaluate(x, y, 4, verbose=0), rtol=1e-5)
    found = terngrad.keras.predict(model, x, group, batch_size=4)
    np.testing.assert_allclose(found, model.predict(x, verbose=0), rtol=1e-5)


class _Adversarial(keras.Model):
    """Two nets with an optimizer each, as in adversarial training."""

    def __init__(self):
        super().__init__()
        self.generator, self.critic = make_model(3), make_model(1)

    def build(self, input_shape):
        self.built = True

    def call(self, x):
        return self.critic(self.generator(x))

    def compile(self, first, second):
        super().compile(loss="mse")
        self.first, self.second = first, second

    def train_step(self, batch):
        x, _ = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.critic(self.generator(x))) - tf.reduce_mean(self.critic(x))
        weights = self.critic.trainable_variables
        self.first.apply(tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            other = -tf.reduce_mean(self.critic(self.generator(x)))
        weights = self.generator.trainable_variables
        self.second.apply(tape.gradient(other, weights), weights)
        return {"critic_loss": loss, "generator_loss": other}


def own_loop(group, built_on):
    """A loop without the callback begins with the chief's weights and optimizer state."""
    weights = make_model().trainable_variables
    optimizer = distributed(group, keras.optimizers.Adam(0.01 * (1 + group.rank)))
    if group.rank in built_on:
        optimizer.build(weights)
    for variable in optimizer.variables:
        variable.assign(variable + tf.ones_like(variable) * (1 + group.rank))
    assert (int(optimizer.iterations), optimizer.built) == (1 + group.rank, group.rank in built_on)

    @tf.function(autograph=False)
    def step():
        optimizer.apply([tf.ones_like(v) for v in weights], weights)

    step()
    assert int(optimizer.iterations) == 2
    for variable in [*weights, *optimizer.variables]:
        first, second = group.all_gather(variable.numpy())
        np.testing.assert_array_equal(first, second, f"{variable.path}, built on {built_on}")


def several_in_own_loop(group):
    """So do the optimizers that a MultiOptimizer has only from its first update on."""
    weights = make_model().trainable_variables
    inner = keras.optimizers.SGD(0.1 * (1 + group.rank))
    optimizer = distributed(group, keras.optimizers.MultiOptimizer(lambda _: inner))
    optimizer.apply([tf.ones_like(v) for v in weights], weights)
    assert float(inner.learning_rate) == np.float32(0.1)
    for variable in weights:
        first, second = group.all_gather(variable.numpy())
        np.testing.assert_array_equal(first, second, variable.path)


class Unbuilt(keras.Model):
    """Only its train_step knows what the net takes: not the batch."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)])

    def call(self, x):
        return self.net(x)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            found = self(tf.concat([x, x], 1), training=True)
            loss = tf.reduce_mean(tf.square(found - y))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def unbuilt(group):
    """Layers that a train_step of a user's own builds in its first step."""
    model = Unbuilt()
    model.compile(distributed(group, keras.optimizers.SGD(0.1)))
    fit(group, model)
    assert model.net.layers[0].kernel.shape == (6, 4)
    assert_together(group, model)


def changed_at_the_end(group):
    """What a callback of one worker changes after the last comparison does not stay."""
    model = make_model()
    model.compile(distributed(group, keras.optimizers.SGD(0.1)), "mse")
    change = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: model.layers[0].kernel.assign_add(
            tf.fill((3, 4), float(group.rank))
        )
    )
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        fit(group, model, callbacks=[change])
    has_warning = any("weights differ at the end of fit" in str(e.message) for e in shown)
    assert has_warning == group.is_chief
    assert_together(group, model)


def built_in_the_first_step(group):
    """A model without weights trains as one that has the chief's from the start."""
    momentum = functools.partial(keras.optimizers.SGD, momentum=0.9)
    optimizers = [keras.optimizers.Adam, momentum]
    if hasattr(keras.optimizers, "ScheduleFreeAdamW"):  # its slots begin as weights
        optimizers.append(keras.optimizers.ScheduleFreeAdamW)
    accumulating = {"learning_rate": 0.1, "gradient_accumulation_steps": 2}
    settings = ({"learning_rate": 0.1}, accumulating)
    ways = list(itertools.product(optimizers, settings, (1, 2)))
    if "--every_way" not in sys.argv:
        ways = ways[::3]  # each optimizer, setting and number of steps occurs
    for optimizer_class, given, at_once in ways:
        found = []
        for is_built in (False, True):
            model = _seeded(is_built, seed=1 if is_built else 1 + group.rank)
            optimizer = distributed(group, optimizer_class(**given), "ternary")
            if is_built:  # in a graph Keras would not run what begins slots as weights
                optimizer.build(model.trainable_variables)
            model.compile(optimizer, "mse", steps_per_execution=at_once)
            fit(group, model)
            assert_together(group, model)
            found.append(model.get_weights())
        for value, expected in zip(*found, strict=True):
            np.testing.assert_array_equal(value, expected, optimizer.name)


def accumulated(group, folder):
    """Gradients of all workers count in an update that an epoch's end, or a backup, comes before.

    With a backup the rest of a training has the bits of the whole one.
    """
    settings = {"learning_rate": 0.1, "gradient_accumulation_steps": 3}
    whole = _accumulating(distributed(group, keras.optimizers.SGD(**settings)))
    fit(group, whole, epochs=3)
    again = _accumulating(distributed(group, keras.optimizers.SGD(**settings)))
    for _ in range(3):
        fit(group, again)
    alone = _accumulating(keras.optimizers.SGD(**settings))
    x, y = (np.concatenate(group.all_gather(part.reshape(_BATCHES, -1)), 1) for part in data(group))
    parts = x.reshape(-1, 3), y.reshape(-1, 2)
    alone.fit(*parts, batch_size=2 * _BATCH, epochs=3, shuffle=False, verbose=0)
    path = group.broadcast_object(folder)
    for epochs in (1, 3):
        resumed = _accumulating(distributed(group, keras.optimizers.SGD(**settings)))
        backup = keras.callbacks.BackupAndRestore(path, delete_checkpoint=False)
        fit(group, resumed, epochs, [backup])
    assert int(whole.optimizer.iterations) == 4
    for i, value in enumerate(whole.get_weights()):
        np.testing.assert_array_equal(again.get_weights()[i], value)
        np.testing.assert_array_equal(resumed.get_weights()[i], value)
        np.testing.assert_allclose(alone.get_weights()[i], value, atol=1e-5)


def _accumulating(optimizer):
    model = _seeded(is_built=True, seed=1)
    model.compile(optimizer, "mse")
    return model


def _seeded(is_built, seed):
    draw = [keras.initializers.GlorotUniform(seed + i) for i in range(2)]
    hidden = keras.layers.Dense(4, "tanh", kernel_initializer=draw[0])
    layers = [hidden, keras.layers.Dense(2, kernel_initializer=draw[1])]
    return keras.Sequential([keras.Input((3,)), *layers] if is_built else layers)


def adversarial(group):
    """A train_step of a user's own with two optimizers."""
    model = _Adversarial()
    optimizers = [distributed(group, keras.optimizers.Adam(0.01), "ternary") for _ in range(2)]
    model.compile(*optimizers)
    history = fit(group, model, epochs=2).history
    assert {"critic_loss", "generator_loss", "bytes_sent"} < history.keys()
    assert [int(o.iterations) for o in optimizers] == [2 * _BATCHES] * 2
    assert_together(group, model)


if __name__ == "__main__":
    main()
