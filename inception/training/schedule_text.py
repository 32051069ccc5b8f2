"""A learning rate as text, by which a worker tells a ps what it needs to know of it."""

import json

from inception.flags.configs import TrainConfig
from inception.training.build import learning_rate
from terngrad.training.schedules import Schedule

# What the learning rate at a step depends on.
_RATE_FIELDS = (
    "initial_learning_rate",
    "learning_rate_decay_type",
    "learning_rate_decay_factor",
    "num_epochs_per_decay",
    "learning_rate_power",
    "end_learning_rate",
    "polynomial_over_epochs",
    "max_steps",
    "warmup_steps",
    "warmup_epochs",
    "warmup_learning_rate",
    "warmup_type",
)


def write_schedule(config: TrainConfig, steps_per_epoch: float) -> str:
    """The learning rate of a training as text, for `read_schedule`."""
    fields = {name: getattr(config, name) for name in _RATE_FIELDS}
    return json.dumps({"steps_per_epoch": steps_per_epoch, "config": fields})


def read_schedule(text: str) -> Schedule:
    """What `write_schedule` wrote; ValueError, TypeError or KeyError if it did not."""
    said = json.loads(text)
    if not said["steps_per_epoch"] > 0 or said["config"].keys() - set(_RATE_FIELDS):
        raise ValueError("no steps an epoch, or other flags than those of the learning rate")
    config = TrainConfig(dataset_name="the workers'", **said["config"])
    return learning_rate(config, said["steps_per_epoch"])
