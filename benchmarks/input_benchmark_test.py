"""The benchmark runs, and its figures are consistent."""

import numpy as np
import pytest


@pytest.mark.slow
def test_the_ratio_is_the_median_over_the_rounds(run, digits, tmp_path):
    picture = tmp_path / "times.png"
    options = ("--rounds=2", "--slice_secs=0", f"--png={picture}")
    figures = run("input_benchmark", f"--mnist_dir={digits}", *options)
    (comparison,) = figures["comparisons"]
    times = comparison["times"]["wall"]
    assert {side: len(values) for side, values in times.items()} == {"synthetic": 2, "records": 2}
    expected = np.median(np.divide(times["records"], times["synthetic"]))
    assert comparison["ratios"]["ms/step, records to synthetic"] == pytest.approx(expected)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_a_folder_it_says_what_is_missing(run):
    with pytest.raises(SystemExit, match="--mnist_dir=: this or --cifar10_dir must be set"):
        run("input_benchmark")
