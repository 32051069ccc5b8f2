"""A training whose workers come and go equals one whose views are forced by hand, bit for bit."""

import re
import signal
import sys
import time

import pytest

from terngrad.planes import SUM_BLOCK
from terngrad.testing.elastic_steps import VALUES
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started, cluster

_LAST = 2  # worker that is killed
_VIEW = re.compile(r"^Workers? ([\d, and]+) trains? from step (\d+) on", re.MULTILINE)
_MORE = 30  # steps after the last return
# Means that owners code again, in so many blocks that each of two or three has some.
CODED = ("codes_sums=1", f"values={6 * SUM_BLOCK - 100}")


def program(name, *given):
    """The command of a program of these tests that makes elastic steps."""
    return [sys.executable, "-m", f"terngrad.testing.programs.{name}", *given]


def loop(coded):
    """The arguments of a loop that a test ends."""
    return "1000000", "elastic=1", "digests=1", f"timeout_secs={HANG_SECS:.0f}", *coded


def views_of(run):
    """The views that a coordinator has logged: the step of each, and the number of workers."""
    found = _VIEW.findall(run.output)
    return [(int(step), len(re.findall(r"\d+", workers))) for workers, step in found]


def digests_of(run):
    """The digests of a process' weights, by step."""
    found = re.findall(r"^digest (\d+) (\w+)\n", run.output, re.MULTILINE)
    return {int(step): digest for step, digest in found}


def wait_for(run, is_there):
    """Waits for a condition while a process runs."""
    deadline = time.monotonic() + HANG_SECS
    while not is_there():
        assert time.monotonic() < deadline and run.process.poll() is None, run.output
        time.sleep(0.05)


def wait_for_step(run, step):
    """Waits until a worker has made at least so many steps."""
    wait_for(run, lambda: max(digests_of(run), default=0) >= step)


def wait_for_view(run, workers, count):
    """Waits until a coordinator has logged so many views of so many workers."""
    wait_for(run, lambda: [size for _, size in views_of(run)].count(workers) >= count)


def forced(steps, views, coded):
    """The digests of one process that makes the steps with these views."""
    given = [f"{step}:{workers}" for step, workers in views]
    values = coded[1].partition("=")[2] if coded else VALUES
    given = [str(steps), str(values), "ternary" if coded else "exact", *given]
    with Started(program("elastic_views", *given)) as run:
        assert run.finish() == 0, run.output
        return digests_of(run)


def assert_equal_bits(runs, teller, coded=()):
    """Compares the bits of all steps up to some after the last return."""
    last = max(digests_of(runs[_LAST])) + _MORE
    for run in runs[:3]:
        wait_for_step(run, last)
    views = [view for view in views_of(teller) if view[0] < last]
    assert {workers for _, workers in views} == {2, 3}
    wanted = forced(last + 1, views, coded)  # its last line has no end
    for rank, run in enumerate(runs[:3]):
        found = {step: digest for step, digest in digests_of(run).items() if step <= last}
        differ = sorted(step for step, digest in found.items() if wanted[step] != digest)
        assert not differ, f"worker {rank} at steps {differ[:9]}, views {views}: {run.output[:200]}"
    assert len(digests_of(runs[0])) >= last


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("servers", "coded"), [(0, ()), (1, ()), (0, CODED), (1, CODED)])
def test_law_4_a_loss_and_a_return_give_the_bits_of_the_same_views_forced_by_hand(servers, coded):
    with cluster(program("elastic_loop", *loop(coded)), 3, servers) as (runs, start):
        teller = runs[-1] if servers else runs[0]
        wait_for_step(runs[_LAST], 20)
        runs[_LAST].process.send_signal(signal.SIGKILL)
        wait_for_view(teller, 2, 1)
        runs[_LAST] = start(_LAST)
        wait_for_view(teller, 3, 2)
        wait_for_step(runs[_LAST], 1)
        assert_equal_bits(runs, teller, coded)


@pytest.mark.slow
@pytest.mark.parametrize("coded", [(), pytest.param(CODED, marks=pytest.mark.exhaustive)])
def test_a_worker_killed_at_any_operation_leaves_the_others_a_whole_step(coded):
    with cluster(program("elastic_loop", *loop(coded)), 3) as (runs, start):
        wait_for_step(runs[0], 10)
        runs[_LAST].process.send_signal(signal.SIGKILL)
        operations = [str(i) for i in range(4 if coded else 2)]
        for losses, operation in enumerate((*operations, "done"), start=1):
            wait_for_view(runs[0], 2, losses)
            killed = start(_LAST, program("elastic_kill", operation, *loop(coded)))
            assert killed.finish() == -signal.SIGKILL, killed.output
        wait_for_view(runs[0], 2, losses + 1)
        runs[_LAST] = start(_LAST)
        wait_for_step(runs[_LAST], 1)
        assert_equal_bits(runs, runs[0], coded)
