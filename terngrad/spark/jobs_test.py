"""Errors of Spark become the line that says what happened."""

import pytest

from terngrad.spark.jobs import is_cancelled, python_traceback, reason

CALL = "An error occurred while calling o321.collectToPython.\n: org.apache.spark.SparkException: "
ABORTED = f"{CALL}Job aborted due to stage failure: "
TASK = "Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in stage 3.0 (x): "
BARRIER = "Could not recover from a failed barrier ResultStage. Most recent failure reason: y.\n"
LOST = "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: "
JAVA = "\n\tat org.apache.spark.scheduler.DAGScheduler(DAGScheduler.scala:1)\nCaused by: z"
PYTHON = """Traceback (most recent call last):
  File "a.py", line 1, in f
    1 / 0
ZeroDivisionError: division by zero

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in f
    raise OSError("no\\nluck")
    ^^^^^^^^^^^^^^^^^^^^^^
OSError: no
luck"""


@pytest.mark.parametrize("before", [ABORTED + TASK, ABORTED + BARRIER, ""])
@pytest.mark.parametrize(
    "after", ["\n SQLSTATE: 38000" + JAVA, "\n" + JAVA, "\n\nDriver stacktrace:" + JAVA]
)
def test_an_error_in_python_gives_its_line(before, after):
    error = RuntimeError(f"{before}org.apache.spark.api.python.PythonException: {PYTHON}{after}")
    assert reason(error) == "OSError: no"
    assert python_traceback(error) == PYTHON


@pytest.mark.parametrize("before", [TASK, BARRIER])
def test_a_lost_executor_is_named_with_the_cause(before):
    lost = "executor 3 was lost: Command exited with code "
    for code, line in ((1, f"{lost}1"), (137, f"{lost}137, as when memory runs out")):
        error = RuntimeError(f"{ABORTED}{before}{LOST}Command exited with code {code}{JAVA}")
        assert reason(error) == line
        assert python_traceback(error) == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            f"{ABORTED}{TASK}Python worker exited unexpectedly (crashed).{JAVA}",
            "the Python process ended: by os._exit, by a signal, or because memory ran out",
        ),
        (f"{ABORTED}Job 3 was cancelled{JAVA}", "Job 3 was cancelled"),
        ("\n[PARSE_SYNTAX_ERROR] Syntax error.\n\n== SQL ==", "[PARSE_SYNTAX_ERROR] Syntax error."),
        ("An error occurred while calling x", "An error occurred while calling x"),
        ("", "RuntimeError"),
    ],
)
def test_any_other_error_gives_its_line_without_the_names_of_java(text, line):
    assert reason(RuntimeError(text)) == line


def test_a_job_that_somebody_cancelled_is_known():
    cancelled = "[SPARK_JOB_CANCELLED] Job 5 cancelled as part of cancellation of all jobs"
    assert is_cancelled(RuntimeError(f"{CALL}{cancelled}{JAVA}"))
    assert not is_cancelled(RuntimeError(f"{ABORTED}{TASK}{LOST}{cancelled}{JAVA}"))
