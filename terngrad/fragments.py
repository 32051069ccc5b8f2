"""Fragments: the parts of a net that local steps exchange one after the other."""

from __future__ import annotations

from collections.abc import Sequence


def make_fragments(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Shares out whole variables, so that all fragments have about as many values.

    The largest variable goes first, each to the fragment that has the fewest values so far; among
    equals the first one counts. So no fragment has more values than another and one variable of it.

    Args:
      sizes: number of values of each variable.
      count: number of fragments.

    Returns:
      The indices of the variables of each fragment, sorted.

    Raises:
      ValueError: there are more fragments than variables.
    """
    if not 1 <= count <= len(sizes):
        raise ValueError(
            f"{count} fragments of {len(sizes)} trained variables; allowed are 1 to {len(sizes)}"
        )
    fragments: list[list[int]] = [[] for _ in range(count)]
    values = [0] * count
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = min(range(count), key=lambda f: (values[f], len(fragments[f])))
        fragments[least].append(i)
        values[least] += sizes[i]
    return [sorted(fragment) for fragment in fragments]
