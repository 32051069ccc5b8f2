"""The learning rate of a training: by step, in words for the log, and as text for a ps."""

import dataclasses
import json
from typing import NamedTuple

from inception.flags.rates import ENDLESS, Rates
from terngrad.training import schedules
from terngrad.training.schedules import Schedule


class _RateSteps(NamedTuple):
    """The durations of a schedule in steps.

    Attributes:
      warm_up: steps before the full rate.
      decay: steps between two exponential decays.
      end: step at which the polynomial decay ends; None = never.
    """

    warm_up: int
    decay: int
    end: int | None


def _rate_steps(rates: Rates, steps_per_epoch: float) -> _RateSteps:
    """Turns epochs into steps: at most so many that no training reaches them, for an int64."""
    steps = lambda epochs: round(min(epochs * steps_per_epoch, ENDLESS))
    decay = max(1, steps(rates.num_epochs_per_decay))
    warm_up = rates.warmup_steps or steps(rates.warmup_epochs)
    return _RateSteps(warm_up, decay, decay if rates.polynomial_over_epochs else rates.max_steps)


def learning_rate(rates: Rates, steps_per_epoch: float) -> Schedule:
    """Returns the learning rate by step."""
    rate = rates.initial_learning_rate
    steps = _rate_steps(rates, steps_per_epoch)
    makers = {
        "fixed": lambda: schedules.fixed(rate),
        "exponential": lambda: schedules.exponential(
            rate, steps.decay, rates.learning_rate_decay_factor
        ),
        "polynomial": lambda: schedules.polynomial(
            rate, steps.end, rates.learning_rate_power, rates.end_learning_rate
        ),
    }
    schedule = makers[rates.learning_rate_decay_type]()
    warm_up = {"gradual": schedules.linear_warmup, "constant": schedules.constant_warmup}
    return warm_up[rates.warmup_type](rates.warmup_learning_rate, steps.warm_up, schedule)


def describe(rates: Rates, steps_per_epoch: float) -> str:
    """Returns a line that describes the learning rate from the first step to the last.

    Args:
      rates: the rates after scaling, see `large_batch.apply`.
      steps_per_epoch: turns epochs into steps.
    """
    parts = []
    steps = _rate_steps(rates, steps_per_epoch)
    if steps.warm_up:
        how = {"gradual": "climbs from", "constant": "stays at"}[rates.warmup_type]
        parts.append(f"{how} {rates.warmup_learning_rate:g} for {steps.warm_up} steps")
    parts.append(f"{rates.initial_learning_rate:g}{_decay(rates, steps)}")
    return f"Learning rate: {', then '.join(parts)}."


def write_schedule(rates: Rates, steps_per_epoch: float) -> str:
    """Returns the learning rate of a training as text, for `read_schedule`."""
    fields = {field.name: getattr(rates, field.name) for field in dataclasses.fields(Rates)}
    return json.dumps({"steps_per_epoch": steps_per_epoch, "config": fields})


def read_schedule(text: str) -> Schedule:
    """Returns the learning rate in a text of `write_schedule`.

    Raises:
      ValueError, TypeError, KeyError: the text is not from `write_schedule`.
    """
    content = json.loads(text)
    if not content["steps_per_epoch"] > 0:
        given = content["steps_per_epoch"]
        raise ValueError(f"steps_per_epoch is {given}; allowed are numbers above 0")
    return learning_rate(Rates(**content["config"]), content["steps_per_epoch"])


def _decay(rates: Rates, steps: _RateSteps) -> str:
    if rates.learning_rate_decay_type == "exponential":
        return f", times {rates.learning_rate_decay_factor:g} every {steps.decay} steps"
    if rates.learning_rate_decay_type == "polynomial":
        end, power = rates.end_learning_rate, rates.learning_rate_power
        return f", falling to {end:g} at step {steps.end} (power {power:g})"
    return ""
