"""Codes of known distributions, and the bits that they cannot do without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

DISTRIBUTIONS: Mapping[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda random, size: random.normal(size=size),
    "Laplace": lambda random, size: random.laplace(size=size),
    "half zeros": lambda random, size: random.laplace(size=size) * random.integers(0, 2, size),
}


def sum_of_codes(gradients: Sequence[np.ndarray], max_code: int, clip: float) -> np.ndarray:
    """Returns the sum of the nodes' codes: int32 [n].

    Each gradient, float [n], is clipped to `clip` standard deviations. The largest value of all has
    the code `max_code`, and others are rounded to one of their two neighbours without bias.
    """
    bounds = [clip * each.std() for each in gradients]
    clipped = [np.clip(g, -b, b) for g, b in zip(gradients, bounds, strict=True)]
    scale = max(np.abs(each).max(initial=0) for each in clipped)
    total, random = np.zeros(gradients[0].size, np.int32), np.random.default_rng(1)
    for each in clipped:
        ideal = each / (scale or 1) * max_code
        total += np.floor(ideal + random.random(ideal.size)).astype(np.int32)
    return total


def entropy(integers: np.ndarray) -> float:
    """Returns the bits an integer of the best code that codes each for itself."""
    shares = np.unique(integers, return_counts=True)[1] / integers.size
    return float(-(shares * np.log2(shares)).sum())
