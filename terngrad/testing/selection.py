"""Which tests pytest runs, in which order, and whether it may skip any."""

from __future__ import annotations

from collections.abc import Container, Iterable

import pytest


def add_option(parser: pytest.Parser) -> None:
    """Adds `--no-skips` to pytest's flags."""
    parser.addoption(
        "--no-skips", action="store_true", help="fail if a test is skipped: something is missing"
    )


def fail_on_skips(session: pytest.Session) -> None:
    """Makes the session fail, with a line, if `--no-skips` is given and it skipped tests.

    Pytest's summary names each test and its reason.
    """
    config = session.config
    if not config.getoption("no_skips") or hasattr(config, "workerinput"):  # xdist: not a worker
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if skipped := len(reporter.stats.get("skipped", [])):
        reporter.write_line("")
        reporter.write_line(f"--no-skips: {skipped} tests were skipped; see below what is missing")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


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


def sample(values: Iterable[object], in_ci: Container[object] = ()) -> list[object]:
    """Returns all values for `pytest.mark.parametrize`; those not in `in_ci` are exhaustive."""
    exhaustive = pytest.mark.exhaustive
    return [each if each in in_ci else pytest.param(each, marks=exhaustive) for each in values]
