"""The flags of the learning rate."""

import dataclasses
import functools

from inception.flags.table import MAX_STEPS, Checked, at_least, flag, number, one_of

_training = functools.partial(flag, "Training")
ENDLESS = MAX_STEPS  # no training reaches them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates(Checked):
    """The settings of the learning rate by step, besides the number of steps in an epoch.

    A parameter server of asynchronous training gets exactly these fields from the chief.
    """

    max_steps: int | None = _training(
        at_least(1, high=MAX_STEPS), 370_000, "end of training", "steps"
    )
    initial_learning_rate: float = _training(number(), 0.01, "learning rate at step 0")
    learning_rate_decay_type: str = _training(
        one_of("exponential", "polynomial", "fixed"),
        "exponential",
        "exponential, polynomial or fixed; optimizer adam keeps it fixed",
    )
    num_epochs_per_decay: float = _training(
        number(above=True), 20.0, "exponential: epochs between two decays", "epochs"
    )
    learning_rate_decay_factor: float = _training(
        number(above=True), 0.1, "exponential: factor of one decay"
    )
    learning_rate_power: float = _training(number(above=True), 0.5, "polynomial: exponent")
    end_learning_rate: float = _training(number(), 0.0, "polynomial: learning rate at max_steps")

    polynomial_over_epochs: bool = False  # the decay ends after num_epochs_per_decay, not max_steps
    warmup_steps: int = 0  # linear from warmup_learning_rate to initial_learning_rate
    warmup_epochs: float = 0.0  # the same as a number of epochs; one of the two is 0
    warmup_learning_rate: float = 0.0
    warmup_type: str = "gradual"  # or constant: no climb

    @property
    def last_step(self) -> int:
        """Steps after which the training ends, also where max_steps is not set."""
        return self.max_steps or ENDLESS

    @property
    def decays_by_epochs(self) -> bool:
        """Whether `num_epochs_per_decay` has an effect."""
        by_epochs = {"exponential": True, "polynomial": self.polynomial_over_epochs}
        return by_epochs.get(self.learning_rate_decay_type, False)
