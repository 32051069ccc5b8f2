"""What workers compare at the start of fit: two workers in threads."""

import keras
import pytest
from keras.callbacks import EarlyStopping, LearningRateScheduler, ReduceLROnPlateau

import terngrad.keras
from terngrad.cluster.errors import MembershipError
from terngrad.library.group import Group
from terngrad.library.keras import agreement
from terngrad.testing.threads import on_all


def compared(work, *sides):
    """Returns what the comparison raises on both workers; "" = nothing."""
    mine, others = on_all(2, lambda group: work(group, sides[group.rank]))
    assert isinstance(mine, (MembershipError, type(None))), mine
    assert str(mine) == str(others)
    return str(mine or "")


def compiled(optimizer=None, loss="mse", metrics=(), steps=0, **settings):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    optimizer = terngrad.keras.distribute(optimizer, Group(), gradients="float32")
    optimizer.build(model.trainable_variables)
    optimizer.iterations.assign(steps)
    model.compile(optimizer, loss, metrics=list(metrics), **settings)
    return model


def agree_on_model(group, model):
    params = {"epochs": 1, "steps": 2}
    agreement.agree_on_model(group, model, [model.optimizer], params)


def _scaled(factor):
    return lambda y, p: factor * keras.ops.mean((y - p) ** 2)


SCHEDULE = keras.optimizers.schedules.CosineDecay
MAKE = keras.optimizers
LOSS = keras.losses


@pytest.mark.parametrize(
    ("mine", "others", "why"),
    [
        (MAKE.SGD(0.1), MAKE.SGD(0.2), "optimizer SGD: learning_rate is 0.2 on worker 1 and 0.1"),
        (MAKE.Adam(beta_2=0.99), MAKE.Adam(), "Adam: beta_2 is 0.999 on worker 1 and 0.99 on"),
        (MAKE.SGD(0.1, clipnorm=1.0), MAKE.SGD(0.1), "SGD: clipnorm is None on worker 1 and 1.0"),
        (MAKE.SGD(SCHEDULE(0.1, 5)), MAKE.SGD(SCHEDULE(0.1, 6)), "learning_rate.decay_steps is 6"),
        (
            MAKE.LossScaleOptimizer(MAKE.SGD(0.1, momentum=0.9)),
            MAKE.LossScaleOptimizer(MAKE.SGD(0.1, momentum=0.8)),
            "optimizer LossScaleOptimizer: inner_optimizer.momentum is 0.8 on worker 1 and 0.9",
        ),
        (MAKE.SGD(0.1), MAKE.RMSprop(0.1), "optimizer RMSprop is RMSprop on worker 1 and nothing"),
    ],
)
def test_a_number_of_the_optimizer_that_differs_is_named(mine, others, why):
    assert why in compared(agree_on_model, compiled(mine), compiled(others))


@pytest.mark.parametrize(
    ("mine", "others", "why"),
    [
        ({"loss": "mse"}, {"loss": "mae"}, "loss is 'mae' on worker 1 and 'mse' on worker 0"),
        ({"loss": LOSS.Huber(1.0)}, {"loss": LOSS.Huber(2.0)}, "loss: delta is 2.0 on worker 1"),
        ({"loss_weights": [1.0]}, {"loss_weights": [0.5]}, "loss_weights[0] is 0.5 on worker 1"),
        ({"loss": lambda y, p: y}, {"loss": lambda y, p: p}, ""),
        ({"loss": _scaled(2)}, {"loss": _scaled(3)}, "loss.factor is 3 on worker 1 and 2 on"),
    ],
)
def test_a_number_of_the_loss_that_differs_is_named(mine, others, why):
    found = compared(agree_on_model, compiled(**mine), compiled(**others))
    assert why in found
    assert bool(why) == bool(found)


def test_a_learning_rate_that_only_the_chief_has_restored_does_not_count():
    assert compared(agree_on_model, compiled(MAKE.SGD(0.05), steps=7), compiled()) == ""
    resumed = compiled(MAKE.SGD(0.05, momentum=0.5), steps=7)
    assert "SGD: momentum is 0.0" in compared(agree_on_model, resumed, compiled())


def agree_on_callbacks(group, side):
    agreement.agree_on_callbacks(group, *side)


AUC = keras.metrics.AUC


@pytest.mark.parametrize(
    ("mine", "others", "why"),
    [
        ([EarlyStopping(patience=1)], [EarlyStopping(patience=2)], "EarlyStopping: patience is 2"),
        (
            [EarlyStopping(), ReduceLROnPlateau(factor=0.5)],
            [ReduceLROnPlateau(factor=0.1), EarlyStopping()],
            "callback ReduceLROnPlateau: factor is 0.1 on worker 1 and 0.5 on worker 0",
        ),
        ([ReduceLROnPlateau()], [], "because they change the training is none on worker 1"),
        ([], [LearningRateScheduler(lambda i: 0.1)], "training is LearningRateScheduler on worker"),
        ([EarlyStopping(patience=1)], [], ""),
        ([EarlyStopping(verbose=1)], [EarlyStopping(verbose=0)], ""),
        ([EarlyStopping("loss", patience=1), EarlyStopping()], [EarlyStopping()], ""),
        (
            [EarlyStopping("loss"), EarlyStopping(patience=1)],
            [EarlyStopping(patience=2)],
            "EarlyStopping: patience with monitor val_loss is 2 on worker 1 and 1 on worker 0",
        ),
        (
            [EarlyStopping("loss"), EarlyStopping(patience=1)],
            [EarlyStopping("loss"), EarlyStopping(patience=2)],
            "callback EarlyStopping 2 of 2: patience is 2 on worker 1 and 1 on worker 0",
        ),
    ],
)
def test_a_number_of_a_callback_that_differs_is_named_and_one_worker_may_stop_all(
    mine, others, why
):
    found = compared(agree_on_callbacks, (compiled(), mine), (compiled(), others))
    assert why in found
    assert bool(why) == bool(found)


def test_a_number_of_a_metric_that_differs_is_named_and_a_worker_may_have_none():
    sides = [(compiled(metrics=[AUC(num_thresholds=n)]), []) for n in (10, 20)]
    found = compared(agree_on_callbacks, *sides)
    assert "metrics AUC: num_thresholds is 20 on worker 1 and 10 on worker 0" in found
    assert compared(agree_on_callbacks, sides[0], (compiled(), [])) == ""


@pytest.mark.parametrize(
    ("mine", "others", "why"),
    [
        (lambda: [AUC(), "accuracy"], lambda: ["accuracy"], ""),
        (lambda: [AUC(), AUC(num_thresholds=9)], lambda: [AUC(num_thresholds=9)], ""),
        (lambda: [AUC(), AUC(9, name="a")], lambda: [AUC(8, name="a")], "a: num_thresholds is 8"),
        (lambda: [[AUC(9)]], lambda: [[AUC(8)]], "metrics[0] AUC: num_thresholds is 8"),
        (lambda: {"a": [AUC(9)]}, lambda: {"a": AUC(8)}, "metrics.a AUC: num_thresholds is 8"),
    ],
)
def test_metrics_correspond_by_their_names_where_a_worker_has_more(mine, others, why):
    def agree(group, make):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="a")])
        model.compile("sgd", "mse", metrics=make())
        agreement.agree_on_callbacks(group, model, [])

    found = compared(agree, mine, others)
    assert why in found
    assert bool(why) == bool(found)


class Own(keras.callbacks.Callback):
    """Has a number."""

    def __init__(self, rate, rank=0):
        """Has a number and a rank, which may differ."""
        super().__init__()
        self.rate, self.rank, self.verbose = rate, rank, rank
        self.is_chief = rank == 0


def test_a_number_of_ones_own_callback_that_differs_is_reported():
    sides = [(compiled(), [Own(0.1 * (rank + 1), rank)]) for rank in range(2)]
    with pytest.warns(UserWarning, match=r"callback Own: rate is 0.2 on worker 1 and 0.1 on wor"):
        assert compared(agree_on_callbacks, *sides) == ""
    with pytest.warns(UserWarning, match=r"callback Own: rate is 0 on worker 1 and 1 on worker 0"):
        compared(agree_on_callbacks, *[(compiled(), [Own(1 - rank, rank)]) for rank in range(2)])


def test_ranks_and_equal_numbers_of_ones_own_callbacks_are_not_reported(recwarn):
    same = [(compiled(), [Own(float("nan"), rank)]) for rank in range(2)]
    recwarn.clear()
    assert compared(agree_on_callbacks, *same) == ""
    more = (compiled(), [Own(0.1, 0), Own(0.2, 0)]), (compiled(), [Own(0.2, 1)])
    assert compared(agree_on_callbacks, *more) == ""
    assert not [each for each in recwarn if "callback" in str(each.message)]


def test_a_rate_that_a_callback_sets_before_the_first_step_is_named():
    agree = lambda group, model: agreement.agree_on_rates(group, [model.optimizer])
    found = compared(agree, compiled(MAKE.SGD(0.5)), compiled(MAKE.SGD(0.25)))
    assert found == "optimizer SGD: learning_rate is 0.25 on worker 1 and 0.5 on worker 0"


def test_all_optimizers_of_keras_have_fields_to_compare():
    for name in dir(keras.optimizers):
        kind = getattr(keras.optimizers, name)
        is_base = name in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
        if isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer) and not is_base:
            assert f"optimizer {name}: learning_rate" in agreement.of_optimizers([kind()])
