"""The help of a benchmark is all that it prints."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_help_is_printed_without_lines_of_tensorflow(tmp_path):
    command = [sys.executable, "-m", "benchmarks.exchange_benchmark", "--help"]
    environment = os.environ | {"MPLCONFIGDIR": str(tmp_path)}  # Bazel's sandbox has no other
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    assert "TensorFlow binary" not in done.stdout
    assert "python -m benchmarks.exchange_benchmark" in done.stdout
