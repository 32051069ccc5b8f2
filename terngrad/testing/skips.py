"""Makes a run of pytest fail if it skipped a test: `--no-skips` (scripts/test.sh --all)."""

from __future__ import annotations

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
