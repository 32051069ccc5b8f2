"""The benchmark runs, and its figures are consistent."""

import pytest

from terngrad.ops import library
from terngrad.ops.native import NativeKernels

try:
    NativeKernels()
except library.UnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.slow
def test_each_task_is_timed_with_each_implementation(run, tmp_path, capsys):
    picture = tmp_path / "codec.png"
    options = ("--rounds=2", "--num_threads=0", f"--png={picture}")
    figures = run("codec_benchmark", "--max_values=100000", *options)
    times = figures["ns_per_value"]["100000"]
    for task in ("stats", "encode", "decode", "sum4", "decode, adam", "decode, adam, averages"):
        assert {"portable", "reference"} <= times[task].keys()
        assert min(times[task].values()) > 0
    assert times["fused adam"].keys() == times["encode"].keys() - {"reference"}
    share = times["encode"]["reference"] / times["copy"]["numpy"]
    assert f"{times['encode']['reference']:.3f} ({share:.2f}) |" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_channels_have_scales_of_their_own_in_each_task(run):
    options = ("--rounds=1", "--num_threads=0", "--scale_by=channel")
    figures = run("codec_benchmark", "--max_values=8192", *options)
    times = figures["ns_per_value"]["8192"]
    assert {"encode 7-level", "encode antithetic", "fused momentum"} <= times.keys()


def test_a_size_that_is_not_allowed_is_named(run):
    with pytest.raises(SystemExit, match="--max_values=3: "):
        run("codec_benchmark", "--max_values=3")
