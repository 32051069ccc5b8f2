"""A function runs once for each combination of arguments, on executors; failures are named."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from terngrad.spark.combinations import LaunchError, combinations, launch

pytestmark = pytest.mark.slow


def test_results_are_in_the_order_of_the_pairs_and_made_by_other_processes(spark):
    own = os.getpid()

    def fn(rate, drop):
        import time

        time.sleep(rate)  # the first takes longest
        return rate, drop, os.getpid() != own

    found = launch(spark, fn, {"rate": [0.4, 0.1, 0.0], "drop": ["a", "b", "c"]})
    assert found == [(0.4, "a", True), (0.1, "b", True), (0.0, "c", True)]


@pytest.mark.exhaustive
def test_all_combinations_are_tried_with_product(spark):
    found = launch(spark, lambda a, b: (a, b), {"a": [1, 2], "b": "xyz"}, product=True)
    assert found == [(a, b) for a in (1, 2) for b in "xyz"]


@pytest.mark.exhaustive
def test_a_call_that_fails_once_is_tried_again(spark, tmp_path):
    mark = tmp_path / "failed"

    def fn(x):
        if x == 1 and not mark.exists():
            mark.touch()
            raise OSError("once")
        return x

    assert launch(spark, fn, {"x": [0, 1, 2]}) == [0, 1, 2]
    assert mark.exists()


def test_a_call_that_always_fails_is_named_and_the_others_results_are_kept(spark):
    with pytest.raises(
        LaunchError, match=r"1 of 3 calls failed:\n\{'x': 0\}: [^$]*ZeroDivision"
    ) as e:
        launch(spark, lambda x: 6 // x, {"x": [1, 0, 3]})
    assert e.value.results == [6, None, 2]


def exit_at_once():
    os._exit(3)


def lose_the_executor():
    pid = os.getpid()
    while b"CoarseGrainedExecutor" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    time.sleep(60)


ENDS = {
    exit_at_once: "the Python process ended: by os._exit",
    lose_the_executor: r"executor \d+ was lost: ",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_call_that_ends_its_process_is_named_and_the_others_results_are_kept(spark, end):
    def fn(x):
        if x == 0:
            end()
        return 6 // x

    with pytest.raises(LaunchError, match=r"1 of 3 calls failed:\n\{'x': 0\}: ") as e:
        launch(spark, fn, {"x": [1, 0, 3]})
    assert re.search(ENDS[end], str(e.value))
    assert e.value.results == [6, None, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "each argument needs at least one value"),
        ({"a": []}, r"each argument needs at least one value; the numbers are \{'a': 0\}"),
        ({"a": [1], "b": [1, 2]}, "without product=True all arguments need as many values"),
    ],
)
def test_law_10_values_that_do_not_fit_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        combinations(values, product=False)


def test_the_former_name_of_the_module_works_with_a_warning():
    with pytest.warns(FutureWarning, match=r"terngrad\.spark\.launch is now called .*combinations"):
        from terngrad.spark.launch import launch as former
    assert former is launch
    with pytest.raises(ImportError, match="LaunchErrors"):
        from terngrad.spark.launch import LaunchErrors  # noqa: F401
