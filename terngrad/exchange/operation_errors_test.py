"""The line of an error of TensorFlow that says what happened."""

import pytest
import tensorflow as tf

from terngrad.exchange.operation_errors import reason


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Graph execution error:\n\nDetected at node TerngradJoin defined at (most recent "
            "call last):\n<stack traces unavailable>\nworker 1 (two:2) closed the connection"
            "\n\t [[{{node TerngradJoin}}]] [Op:__inference_run_12]",
            "worker 1 (two:2) closed the connection",
        ),
        (
            "Graph execution error:\n\nDetected at node x defined at (most recent call last):\n"
            '  File "a.py", line 3, in f\n\n2 root error(s) found.\n  (0) ABORTED: lost',
            "ABORTED: lost",
        ),
        ("one line", "one line"),
        (
            "{{function_node __wrapped__R_device_/job:x/task:0}} three values",
            "three values",
        ),
        ("Graph execution error:\n", "UnavailableError"),
    ],
)
def test_the_informative_line_of_an_error_is_found(message, expected):
    assert reason(tf.errors.UnavailableError(None, None, message)) == expected
