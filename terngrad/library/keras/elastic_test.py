"""The parts of an elastic `fit`, in one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terngrad.keras
from terngrad.library.group import Group
from terngrad.library.keras import elastic, state
from terngrad.library.keras.elastic_step import ElasticStep, FitPosition, Position
from terngrad.library.keras.optimizer import exchange_of

DATA = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")


class Elastic(Group):
    """Two workers that may come and go, of which this one never speaks with the other."""

    def __init__(self):
        """Is the first of them."""
        super().__init__(0, 2, is_elastic=True)

    def check_open(self):
        """Is always open."""


def compiled(group, optimizer=None, nodes=1, **settings):
    """A model with all that changes in a step before it is made."""
    layers = [keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, keras.layers.Dense(2)])
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    optimizer = terngrad.keras.distribute(optimizer, group, gradients="ternary", nodes=nodes)
    model.compile(optimizer, "mse", metrics=["mae"], **settings)
    return model


def prepared(group, nodes=1, **settings):
    """A model and its step, traced as `fit` does it."""
    keras.utils.set_random_seed(1)
    model = compiled(group, nodes=nodes, **settings)
    step = ElasticStep.of(model, [exchange_of(model.optimizer)])
    spec = tuple(tf.TensorSpec([None, each.shape[1]], tf.float32) for each in DATA)
    step.make_variables(spec)
    run = tf.function(step.run, autograph=False)
    run.get_concrete_function(spec)
    step.copy()
    return model, step, run


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_step_is_counted_once_and_all_that_it_changed_is_kept(nodes):
    model, step, run = prepared(Group(is_elastic=True), nodes)
    progress, *_ = step.state(model.optimizer)
    for _ in range(2):
        run(DATA)
    (reducer,) = step.exchange.reducers.values()
    assert step.position.current == FitPosition(0, 0, 0, 2)
    assert int(progress) == int(reducer.state.step) == int(model.optimizer.iterations) == 2
    changing = [*state.moving_statistics(model), *state.seed_states(model)]
    changing += model.metrics_variables
    before = [keras.ops.convert_to_numpy(each) for each in changing]
    step.restore()
    for each, value in zip(changing, before, strict=True):
        np.testing.assert_array_equal(each, value)


def test_what_an_abandoned_step_changed_is_restored():
    model, step, run = prepared(Group(is_elastic=True))
    run(DATA)
    changing = [*state.moving_statistics(model), *model.metrics_variables]
    changing += state.seed_states(model)
    before = [keras.ops.convert_to_numpy(each) for each in changing]
    for each in changing:
        each.assign(keras.ops.zeros_like(each))
    step.restore()
    for each, value in zip(changing, before, strict=True):
        np.testing.assert_array_equal(each, value)
    assert np.any(before[0]), "the step changed nothing"


def test_a_train_step_that_applies_gradients_twice_is_named():
    class Twice(keras.Sequential):
        def train_step(self, data):
            super().train_step(data)
            return super().train_step(data)

    group = Group(is_elastic=True)
    model = Twice([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(terngrad.keras.distribute(keras.optimizers.SGD(), group), "mse")
    step = ElasticStep.of(model, [exchange_of(model.optimizer)])
    with pytest.raises(ValueError, match="applies gradients 2 times; allowed is once"):
        tf.function(step.run, autograph=False).get_concrete_function(DATA)


def test_positions_come_in_the_order_of_a_training():
    positions = [
        FitPosition(0, 0),
        FitPosition(0, 0, 0, 1),
        FitPosition(0, 0, 1),
        FitPosition(0, 1),
        FitPosition(0, 1, 1),
    ]
    assert [*positions, FitPosition(1, 0)] == sorted([FitPosition(1, 0), *reversed(positions)])


def test_a_summary_that_is_too_long_lacks_the_logs_but_has_the_requests():
    position = Position()
    assert position.summary == {}
    position.set_summary({"epoch": 1, "logs": {"loss": float("inf")}})
    assert position.summary == {"epoch": 1, "logs": {"loss": float("inf")}}
    position.set_summary({"epoch": 2, "logs": {"f1_score": [0.5] * 10_000}, "requests": [1.0]})
    assert position.summary == {"epoch": 2, "requests": [1.0]}


def test_a_metric_that_is_a_vector_is_kept_for_workers_that_missed_it():
    model, step, _ = prepared(Group(is_elastic=True))
    fit = elastic.ElasticFit(model, model.optimizer, step, "none")
    fit.begin_epoch(3)
    fit.note_logs({"loss": 0.5, "f1_score": np.float32([0.25, 1.0])})
    assert fit.logs["loss"] == 0.5
    np.testing.assert_array_equal(fit.logs["f1_score"], np.float32([0.25, 1.0]))


@pytest.mark.parametrize(
    ("settings", "optimizer", "why"),
    [
        ({"run_eagerly": True}, {}, "run_eagerly is True; allowed is False"),
        ({"steps_per_execution": 2}, {}, "steps_per_execution is 2; allowed is 1"),
        ({}, {"gradient_accumulation_steps": 2}, "gradient_accumulation_steps is 2; allowed is N"),
    ],
)
def test_law_10_what_cannot_be_trained_is_named(settings, optimizer, why):
    group = Elastic()
    model = compiled(group, keras.optimizers.SGD(**optimizer), **settings)
    with pytest.raises(ValueError, match=f"DistributedCallback: {why}"):
        model.fit(*DATA, verbose=0, callbacks=[terngrad.keras.DistributedCallback(group)])


def test_law_10_groups_and_rates_that_do_not_fit_are_named():
    group = Elastic()
    two = compiled(group)
    two.other = terngrad.keras.distribute(keras.optimizers.SGD(), group)
    with pytest.raises(
        ValueError, match="DistributedCallback: a model with 2 distributed optimizers"
    ):
        two.fit(*DATA, verbose=0, callbacks=[terngrad.keras.DistributedCallback(group)])
    scaled = compiled(group, keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    together = terngrad.keras.DistributedCallback(group, learning_rate_scaling="sqrt")
    with pytest.raises(ValueError, match="learning_rate_scaling is 'sqrt'; allowed is 'none' with"):
        scaled.fit(*DATA, verbose=0, callbacks=[together])
    with pytest.raises(ValueError, match="'half'; allowed are none, linear, sqrt"):
        terngrad.keras.DistributedCallback(group, learning_rate_scaling="half")


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_factor_scales_the_updates_and_not_the_optimizers_own_rate(name):
    updates = []
    for factor in (None, 0.5):
        optimizer = getattr(keras.optimizers, name)(0.25)
        terngrad.keras.distribute(optimizer, Group(), gradients="float32")
        if factor:
            exchange_of(optimizer).rate_factor = tf.Variable(factor)
        weight = keras.Variable(np.ones(8, "float32"))
        optimizer.apply([tf.ones(8)], [weight])
        updates.append(1.0 - weight.numpy())
        assert float(optimizer.learning_rate) == 0.25
    np.testing.assert_allclose(updates[1], 0.5 * updates[0], rtol=1e-5)


def test_at_the_end_of_an_epoch_all_take_the_rates_within_a_multi_optimizer(monkeypatch):
    parts = [keras.optimizers.Adam(0.25), keras.optimizers.SGD(0.5)]
    pick = lambda variable: parts["kernel" in variable.path]
    model = compiled(Group(is_elastic=True), keras.optimizers.MultiOptimizer(pick))
    model.optimizer.build(model.trainable_variables)
    step = ElasticStep.of(model, [exchange_of(model.optimizer)])
    fit = elastic.ElasticFit(model, model.optimizer, step, "none")
    firsts = {"requests": [0.0], "rates": [None, 0.125, 0.5]}
    monkeypatch.setattr(fit, "_exchange_rows", lambda own, row: {0: firsts, 1: row})
    fit.begin_epoch(0)
    assert fit.decide([1.0]) == [1.0]
    assert [float(each.learning_rate) for each in parts] == [0.125, 0.5]


def test_an_unknown_number_of_steps_is_refused():
    assert elastic.check_steps(3) == 3
    with pytest.raises(ValueError, match=r"the number of batches is unknown.*: give steps_per_epo"):
        elastic.check_steps(None)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_worker_that_made_no_step_of_an_epoch_gives_no_metrics_of_its_training(
    steps, monkeypatch
):
    model, step, run = prepared(Group(is_elastic=True))
    fit = elastic.ElasticFit(model, model.optimizer, step, "none")
    fit._function = run
    monkeypatch.setattr(fit, "_exchange_rows", lambda own, row: {0: row})
    fit.begin_epoch(0)
    for _ in range(steps):
        fit(iter([DATA]))
    row = {"logs": {"loss": 0.5, "val_loss": 0.25}, "weights": 7}
    found = fit.share_metrics(row)[0]
    assert found["logs"] == (row["logs"] if steps else {"val_loss": 0.25})
    assert found["weights"] == 7
