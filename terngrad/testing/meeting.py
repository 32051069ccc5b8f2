"""What a meeting of processes must come to."""

from collections.abc import Mapping, Sequence

TIMEOUT = 20.0  # seconds


def hosts_of(count: int) -> list[str]:
    """Returns names of so many workers; nobody listens there."""
    return [f"host{i}:2222" for i in range(count)]


def assert_met(results: Sequence[Mapping[int, object]]) -> None:
    """Asserts that the chief is connected with each other process, and each one with the chief.

    Args:
      results: what each process was given, by rank: connections by the other's rank.
    """
    assert all(isinstance(r, dict) for r in results), results
    assert sorted(results[0]) == list(range(1, len(results)))
    for result in results[1:]:
        assert sorted(result) == [0]
