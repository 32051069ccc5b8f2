"""The soak test kills processes and finds nothing lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[1] / "slim" / "datasets" / "mnist_sample"


def run(module, *flags):
    done = subprocess.run(
        [sys.executable, "-m", module, *flags],
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_processes_change_no_bit_and_all_is_told(tmp_path):
    data = f"{tmp_path}/data"
    convert = ["--dataset_name=mnist", f"--source_dir={SAMPLE}", f"--dataset_dir={data}"]
    run("slim.download_and_convert_data", *convert)
    files = [f"--json={tmp_path}/figures.json", f"--png={tmp_path}/figure.png"]
    folders = [f"--data_dir={data}", f"--output_dir={tmp_path}/runs"]
    size = ["--workers=2", "--minutes=0.6", "--every_secs=15", "--batch_size=4"]
    run("benchmarks.soak", *folders, *files, *size)
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert figures["kills"] >= 1
    assert figures["steps"] > 0
    assert figures["variables that differ from the undisturbed run"] == 0
    assert (tmp_path / "figure.png").stat().st_size > 1000
