"""Checks for a meeting of processes."""

from collections.abc import Mapping, Sequence

from terngrad.testing.limits import HANG_SECS

TIMEOUT = HANG_SECS


def hosts_of(count: int) -> list[str]:
    """Returns the hosts of `count` workers; no process listens there."""
    return [f"host{i}:2222" for i in range(count)]


def assert_met(results: Sequence[Mapping[int, object]]) -> None:
    """Asserts that the chief is connected to each other process, and each of these to the chief.

    Args:
      results: connections of each process, by rank of the other process.
    """
    assert all(isinstance(r, dict) for r in results), results
    assert sorted(results[0]) == list(range(1, len(results)))
    for result in results[1:]:
        assert sorted(result) == [0]
