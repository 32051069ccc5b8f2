"""The flags of large batches: scaling of the learning rate with the global batch, and a warm-up."""

import dataclasses
import functools
import math

from inception.flags.configs import TrainConfig
from inception.flags.table import Checked, at_least, flag, number, one_of

_training = functools.partial(flag, "Training")
_SCALINGS = {"none": lambda ratio: 1.0, "linear": lambda ratio: ratio, "sqrt": math.sqrt}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargeBatch(Checked):
    """How the learning rate scales with the global batch, and the warm-up."""

    learning_rate_scaling: str = _training(
        one_of(*_SCALINGS),
        "none",
        "multiplies initial_learning_rate by global batch / base_batch_size (linear), by its "
        "square root (sqrt) or by 1 (none)",
    )
    base_batch_size: int = _training(
        at_least(1, -1),
        -1,
        "batch size that initial_learning_rate was chosen for; -1 = that of one worker",
        "images",
    )
    warmup_epochs: float = _training(
        number(), 0.0, "length of the warm-up, before the full learning rate", "epochs"
    )
    warmup_type: str = _training(
        one_of("gradual", "constant"),
        "gradual",
        "gradual: the rate climbs from warmup_learning_rate; constant: it stays there",
    )
    warmup_learning_rate: float | None = _training(
        number(), None, "rate of the warm-up; not set = initial_learning_rate, unscaled"
    )


def inert_flags(large_batch: LargeBatch) -> dict[str, str]:
    """Flags that have no effect in this config, with the reason."""
    inert = {}
    if large_batch.learning_rate_scaling == "none":
        inert["base_batch_size"] = "--learning_rate_scaling=none"
    if not large_batch.warmup_epochs:
        inert |= dict.fromkeys(("warmup_type", "warmup_learning_rate"), "--warmup_epochs=0")
    return inert


def apply(config: TrainConfig, large_batch: LargeBatch, workers: int) -> TrainConfig:
    """Returns the config with the learning rates that `workers` workers use."""
    rate = config.initial_learning_rate
    start = large_batch.warmup_learning_rate
    return dataclasses.replace(
        config,
        initial_learning_rate=rate * factor(config, large_batch, workers),
        warmup_epochs=large_batch.warmup_epochs,
        warmup_type=large_batch.warmup_type,
        warmup_learning_rate=rate if start is None else start,
    )


def factor(config: TrainConfig, large_batch: LargeBatch, workers: int) -> float:
    """The factor of the learning rate."""
    base = large_batch.base_batch_size
    ratio = workers * config.batch_size / (config.batch_size if base == -1 else base)
    return _SCALINGS[large_batch.learning_rate_scaling](ratio)
