"""Learning rates of large batches against their definitions."""

import pytest
import tensorflow as tf

from inception.flags import large_batch
from inception.flags.configs import TrainConfig
from inception.flags.large_batch import LargeBatch
from inception.training.learning_rate import describe, learning_rate


def config_of(**changes):
    return TrainConfig(
        dataset_name="mnist",
        net="lenet",
        batch_size=32,
        learning_rate_decay_type="fixed",
        **changes,
    )


@pytest.mark.parametrize(
    ("scaling", "base", "expected"),
    [("none", -1, 0.1), ("linear", -1, 0.8), ("sqrt", -1, 0.1 * 8**0.5), ("linear", 256, 0.1)],
)
def test_the_rate_follows_the_global_batch(scaling, base, expected):
    chosen = LargeBatch(learning_rate_scaling=scaling, base_batch_size=base)
    got = large_batch.apply(config_of(initial_learning_rate=0.1), chosen, workers=8)
    assert got.initial_learning_rate == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "expected"), [("gradual", [0.1, 0.25, 0.4, 0.4]), ("constant", [0.1, 0.1, 0.4, 0.4])]
)
def test_warm_up_climbs_or_stays_and_ends_at_the_scaled_rate(kind, expected):
    chosen = LargeBatch(learning_rate_scaling="linear", warmup_epochs=2.0, warmup_type=kind)
    config = large_batch.apply(config_of(initial_learning_rate=0.1), chosen, workers=4)
    schedule = learning_rate(config, steps_per_epoch=50)
    got = [float(schedule(tf.constant(step, tf.int64))) for step in (0, 50, 100, 1000)]
    assert got == pytest.approx(expected)


def test_the_recipe_of_many_nodes_warms_up_and_decays_with_power_3():
    base = TrainConfig(
        dataset_name="mnist",
        net="lenet",
        batch_size=32,
        initial_learning_rate=0.05,
        learning_rate_decay_type="polynomial",
        learning_rate_power=3.0,
        end_learning_rate=0.001,
        max_steps=10_000,
    )
    chosen = LargeBatch(learning_rate_scaling="sqrt", base_batch_size=32, warmup_epochs=5)
    config = large_batch.apply(base, chosen, workers=64)
    assert describe(config, 100) == (
        "Learning rate: climbs from 0.05 for 500 steps, then 0.4, "
        "falling to 0.001 at step 10000 (power 3)."
    )
    schedule = learning_rate(config, steps_per_epoch=100)
    got = [float(schedule(tf.constant(step, tf.int64))) for step in (0, 500, 5000, 10_000, 20_000)]
    decayed = [(0.4 - 0.001) * (1 - step / 10_000) ** 3 + 0.001 for step in (500, 5000)]
    assert got == pytest.approx([0.05, *decayed, 0.001, 0.001], rel=1e-5)


@pytest.mark.parametrize(
    ("decay", "text"),
    [
        ("exponential", "0.01, times 0.1 every 2000 steps."),
        ("polynomial", "0.01, falling to 0 at step 370000 (power 0.5)."),
        ("fixed", "0.01."),
    ],
)
def test_the_description_states_the_decay(decay, text):
    config = TrainConfig(dataset_name="mnist", net="lenet", learning_rate_decay_type=decay)
    assert describe(config, 100) == f"Learning rate: {text}"


def test_the_description_states_when_slims_schedule_warms_up_and_ends():
    config = TrainConfig(
        dataset_name="mnist",
        net="lenet",
        learning_rate_decay_type="polynomial",
        num_epochs_per_decay=2.0,
        polynomial_over_epochs=True,
        warmup_steps=30,
        max_steps=None,
    )
    assert describe(config, 50) == (
        "Learning rate: climbs from 0 for 30 steps, then 0.01, "
        "falling to 0 at step 100 (power 0.5)."
    )


def test_flags_without_effect_are_known():
    assert set(large_batch.inert_flags(LargeBatch())) == {
        "base_batch_size",
        "warmup_type",
        "warmup_learning_rate",
    }
    used = LargeBatch(learning_rate_scaling="linear", warmup_epochs=1.0)
    assert not large_batch.inert_flags(used)
