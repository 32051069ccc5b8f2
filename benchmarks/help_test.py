"""The help of a benchmark is all that it prints."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_help_is_printed_without_lines_of_tensorflow():
    command = [sys.executable, "-m", "benchmarks.exchange_benchmark", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "TensorFlow binary" not in done.stdout
    assert "python -m benchmarks.exchange_benchmark" in done.stdout
