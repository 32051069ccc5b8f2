"""The order in which the workers of pytest-xdist run the tests."""

from __future__ import annotations

import pytest


def slow_first(items: list[pytest.Item], workers: int) -> None:
    """Reorders the tests such that each worker begins with modules that have slow tests.

    `--dist worksteal` gives each worker one of `workers` stretches of the list, about equal ones. A
    worker that is done takes tests from the end of another's. So none waits for one that began a
    long test last. The tests of a module stay together: they share fixtures.
    """
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(str(item.path), []).append(item)
    is_fast = lambda tests: not any(test.get_closest_marker("slow") for test in tests)
    ordered = sorted(modules.values(), key=is_fast)
    stretches = [ordered[worker::workers] for worker in range(workers)]
    items[:] = [item for stretch in stretches for tests in stretch for item in tests]
