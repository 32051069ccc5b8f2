"""The learning rate by step is that of the flags, whatever their values are."""

import pytest
import tensorflow as tf

from inception.flags.rates import Rates
from inception.training.learning_rate import describe, learning_rate


@pytest.mark.parametrize("epochs", [1e30, 1e308])
@pytest.mark.parametrize("kind", ["exponential", "polynomial"])
@pytest.mark.parametrize("warm_up", ["gradual", "constant"])
def test_epochs_that_no_training_reaches_change_no_rate(epochs, kind, warm_up):
    common = {"initial_learning_rate": 0.5, "learning_rate_decay_type": kind}
    common |= {"num_epochs_per_decay": epochs, "polynomial_over_epochs": True}
    rate_at = lambda rates: float(learning_rate(rates, 1000.0)(tf.constant(10**6, tf.int64)))
    assert rate_at(Rates(**common)) == pytest.approx(0.5)
    warm = {"warmup_epochs": epochs, "warmup_learning_rate": 0.25, "warmup_type": warm_up}
    rates = Rates(**common, **warm)
    assert rate_at(rates) == pytest.approx(0.25)
    assert "for 4611686018427387904 steps" in describe(rates, 1000.0)
