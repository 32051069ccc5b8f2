"""Local steps in fit, on two processes and on one."""

import gc
import re
import sys

import keras
import numpy as np
import pytest

import terngrad.keras
from terngrad.library.group import Group
from terngrad.testing.processes import finished, launch_environments

ALONE = Group()
DRAW = np.random.default_rng(1)
DATA = DRAW.normal(size=(20, 3)).astype("float32"), DRAW.normal(size=(20, 1)).astype("float32")


@pytest.mark.slow
def test_two_workers_train_as_in_a_loop_stop_together_and_resume_with_equal_bits(tmp_path):
    """And unequally many batches are named."""
    program = [sys.executable, "-m", "terngrad.testing.programs.fit_local_steps", str(tmp_path)]
    named = r"batches of an epoch \(use group.shard\) is 4 on worker 1 \S+ and 5 on worker 0"
    for output, status in finished([program] * 2, launch_environments(2)):
        assert status == 0, output
        assert re.search(named, output), output


def compiled(optimizer=None, layers=(), **settings):
    keras.utils.set_random_seed(1)
    layers = layers or [keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    optimizer = optimizer or keras.optimizers.Adam(0.1)
    model.compile(optimizer, "mse", **{"run_eagerly": True} | settings)
    return model


def fit(model, *callbacks, group=ALONE, **settings):
    local = terngrad.keras.LocalSteps(group, **{"steps": 2, "gradients": "ternary"} | settings)
    given = {"batch_size": 4, "epochs": 4, "shuffle": False, "verbose": 0}
    return model.fit(*DATA, callbacks=[*callbacks, local], **given).history


class Failing(keras.callbacks.Callback):
    """Fails in the third epoch of five steps."""

    def on_train_batch_begin(self, batch, logs=None):
        """Fails."""
        if int(self.model.optimizer.iterations) == 12:
            raise InterruptedError


@pytest.mark.parametrize("chosen", [{}, {"fragments": 2, "overlap": True}])
def test_law_8_a_resumed_fit_has_the_bits_of_an_undisturbed_one(tmp_path, chosen):
    chosen = chosen | {"gradients": "ternary-feedback"}
    backup = lambda: keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    plateau = lambda: keras.callbacks.ReduceLROnPlateau("loss", min_delta=9.0, patience=1)
    history = fit(whole := compiled(), plateau(), **chosen)
    with pytest.raises(InterruptedError):
        fit(compiled(), backup(), plateau(), Failing(), **chosen)
    rest = fit(part := compiled(), backup(), plateau(), **chosen)
    for found, expected in zip(part.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert rest["loss"] == history["loss"][2:]
    assert list(tmp_path.iterdir()) == [], "Keras deletes backups, too"
    assert len(fit(part, **chosen)["loss"]) == len(history["loss"]), "a later fit has all epochs"


def test_the_state_of_other_weights_is_not_restored(tmp_path):
    backup = lambda: keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=1)
    with pytest.raises(InterruptedError):
        fit(compiled(), backup(), Failing())
    with pytest.warns(UserWarning, match=r"begin anew: \S+ belongs to other weights than those"):
        fit(compiled(), backup())


def test_a_damaged_state_is_not_restored_in_part(tmp_path):
    backup = lambda: keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    with pytest.raises(InterruptedError):
        fit(compiled(), backup(), Failing(), gradients="ternary-feedback")
    for path in (tmp_path / "backup-local").rglob("*.data-*"):
        path.write_bytes(path.read_bytes()[:-4])
    with pytest.warns(UserWarning, match=r"an outer momentum that begin anew: \S+ is damaged: "):
        fit(compiled(), backup(), gradients="ternary-feedback")


def test_the_memory_of_a_fit_is_freed_after_it():
    group, model = Group(), compiled()
    for _ in range(3):
        fit(model, group=group, gradients="ternary-feedback")
        gc.collect()
    assert len(group.memories) <= 1


@pytest.mark.parametrize("settings", [{"run_eagerly": True}, {"steps_per_execution": 2}])
def test_alone_an_epoch_ends_with_an_exchange_and_metrics_have_bits(settings):
    model = compiled(**{"run_eagerly": False} | settings)
    for _ in range(2):  # also in a second fit
        history = fit(model)
    assert {"loss", "bytes_sent", "bits_per_parameter"} == history.keys()
    assert history["bytes_sent"] == [0] * 4
    assert len(history["loss"]) == 4


class Stopping(keras.callbacks.Callback):
    """Stops after a step."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        """Stops."""
        self.model.stop_training = int(self.model.optimizer.iterations) == self.step


@pytest.mark.parametrize(("step", "steps"), [(1, 3), (2, 3), (3, 5)])
def test_a_stop_waits_for_the_next_exchange_or_the_end_of_the_epoch(step, steps):
    model = compiled()
    fit(model, Stopping(step), steps=3)
    assert int(model.optimizer.iterations) == steps


def test_an_exchange_averages_and_applies_the_outer_optimizer_before_validation():
    model = compiled(keras.optimizers.SGD(0.1), [keras.Input((3,)), keras.layers.Dense(1)])
    start = model.get_weights()
    seen = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(model.get_weights())
    )
    fit(model, callback, steps=5, learning_rate=0.0)
    assert np.any(seen[3][0] != start[0])
    for found, expected in zip(seen[4], start, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        ({"steps": 0}, ValueError, "steps is 0; allowed are 1 and more"),
        ({"fragments": 3}, ValueError, "fragments is 3; allowed are divisors of steps, 2"),
        ({"momentum": "a"}, TypeError, "momentum is 'a'; allowed are numbers"),
        ({"gradients": "none"}, ValueError, "gradients is 'none'; allowed are"),
        ({"stepz": 3}, TypeError, "stepz is no argument of LocalSteps"),
        ({"nodes": 2}, TypeError, "nodes is no argument of LocalSteps"),
        ({"averaged": []}, TypeError, "averaged is no argument of LocalSteps"),
        ({"group": Group(is_elastic=True)}, ValueError, "LocalSteps: the group is elastic or has"),
    ],
)
def test_law_10_a_wrong_argument_is_named_before_fit(settings, error, why):
    with pytest.raises(error, match=re.escape(why)):
        terngrad.keras.LocalSteps(**{"group": ALONE, "steps": 2} | settings)


def test_law_10_a_group_whose_workers_do_not_wait_is_refused():
    group = Group()
    group.asynchronous = object()
    with pytest.raises(ValueError, match="no process of the group waits for another"):
        terngrad.keras.LocalSteps(group)


SGD = keras.optimizers.SGD


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: compiled(terngrad.keras.distribute(SGD(), ALONE)),
            "LocalSteps: the optimizer SGD is distributed, so that it exchanges gradients in each",
        ),
        (
            lambda: compiled(SGD(use_ema=True)),
            "LocalSteps: SGD has use_ema=True, which averages the weights of each worker alone",
        ),
        (
            lambda: compiled(steps_per_execution=3),
            "steps_per_execution is 3; allowed are divisors of steps / fragments, 2",
        ),
        (
            lambda: compiled(layers=[keras.layers.Dense(1)]),
            "before the first batch; build the model before fit: with a keras.Input",
        ),
    ],
)
def test_law_10_a_model_that_cannot_make_local_steps_is_named(make, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        fit(make())


def test_law_10_two_callbacks_that_exchange_are_refused(tmp_path):
    together = terngrad.keras.DistributedCallback(ALONE)
    with pytest.raises(ValueError, match="beside LocalSteps in the list of callbacks"):
        fit(compiled(), together)
    with pytest.raises(ValueError, match="beside LocalSteps in the list of callbacks; allowed is"):
        fit(compiled(), terngrad.keras.LocalSteps(ALONE))
    with pytest.raises(ValueError, match="LocalSteps: put it before TensorBoard"):
        fit(compiled(), keras.callbacks.TensorBoard(tmp_path))
    with pytest.raises(ValueError, match="LocalSteps: give it to fit"):
        terngrad.keras.LocalSteps(ALONE).set_model(compiled())
