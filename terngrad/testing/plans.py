"""A plan of an asynchronous training without a net, and gradients for it."""

import numpy as np

from terngrad.asynchronous.plan import Plan
from terngrad.layout import Policy

CONFIGURATION = {"layout": "this one", "batch_size": "8"}
PLAN = Plan(
    run="a run",
    names=("a/kernel", "a/bias"),
    shapes=((40, 3), (3,)),
    policy=Policy(grad_bits=1),
    bucket_elements=64,
    statistics=0,
    nodes=1,
    optimizer="gd",
    momentum=0.0,
    averages_decay=0.0,
    max_steps=100,
    max_staleness=-1,
    pull_bits=32,
    schedule="",
    configuration=CONFIGURATION,
)


def gradient(scale: float = 1.0, word: int = 0, sign: int = 0) -> bytes:
    """Returns a push's content for PLAN: two scales, codes of 123 elements in 4 groups."""
    return np.float32([scale] * 2).tobytes() + np.array([word, sign] * 4, "<u4").tobytes()
