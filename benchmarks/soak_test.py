"""The soak test kills processes and finds nothing lost."""

import pytest

from benchmarks import soak


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_processes_change_no_bit_and_all_is_told(run, digits, tmp_path):
    picture = tmp_path / "figure.png"
    found = run(
        *("soak", f"--data_dir={digits}", f"--output_dir={tmp_path / 'runs'}", f"--png={picture}"),
        *("--workers=2", "--minutes=0.4", "--every_secs=10", "--batch_size=4"),
    )
    figures = found["figures"]
    assert figures["kills"] == len(found["kills"]) >= 1
    assert figures["steps"] > 0
    assert figures["variables that differ from the undisturbed run"] == 0
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("megabytes", "means"),
    [
        ([1, 1, 2, 2, 3, 3, 4, 4], [1.0, 2.0, 3.0, 4.0]),
        ([1, 3, 5, 7, 9], [2.0, 5.0, 7.0, 9.0]),
        ([5], [5.0]),
        ([], []),
    ],
)
def test_each_sample_of_memory_counts_in_one_quarter(megabytes, means):
    samples = [(float(i), "1", value) for i, value in enumerate(megabytes)]
    others = [(float(i), "0", 1000.0) for i in range(9)]
    watch = soak._Watch(memory=samples + others)
    assert soak._quarters(watch, soak._Options(workers=2)) == means
