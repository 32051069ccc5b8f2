"""Keras' `model.fit` on several machines, with compressed gradients.

group = terngrad.join()
optimizer = terngrad.keras.distribute(keras.optimizers.Adam(1e-3), group)
model.compile(optimizer, loss, metrics=metrics)
model.fit(group.shard(dataset), callbacks=[terngrad.keras.DistributedCallback(group)])
terngrad.keras.evaluate(model, test, group)

Over slow networks `callbacks=[terngrad.keras.LocalSteps(group)]`, and an optimizer that is not
distributed.
"""

import warnings
from typing import Any

from terngrad.library.keras.callback import DistributedCallback
from terngrad.library.keras.distribute import distribute
from terngrad.library.keras.evaluation import evaluate, predict
from terngrad.library.keras.local_steps import LocalSteps

__all__ = ["DistributedCallback", "LocalSteps", "distribute", "evaluate", "predict"]


def __getattr__(name: str) -> Any:
    """Returns the callback by its former name, with a warning."""
    if name != "Together":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = "Together is now called DistributedCallback; the next version has only that name"
    warnings.warn(f"terngrad.keras: {message}", FutureWarning, stacklevel=2)
    return DistributedCallback
