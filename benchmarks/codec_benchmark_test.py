"""The benchmark runs, and its figures are consistent."""

import pytest

from terngrad.ops import library
from terngrad.ops.native import NativeKernels

try:
    NativeKernels()
except library.UnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.mark.slow
def test_ratios_are_those_of_the_times(run, tmp_path):
    picture = tmp_path / "codec.png"
    options = ("--rounds=2", "--num_threads=0", f"--png={picture}")
    figures = run("codec_benchmark", "--max_values=100000", *options)
    times, ratios = figures["ns_per_value"]["100000"], figures["100000"]
    copy = times["copy"]["numpy"]
    fastest = next(iter(times["encode"]))
    assert ratios["encode_over_copy"] == pytest.approx(times["encode"][fastest] / copy)
    expected = times["decode"]["reference"] / times["decode"]["portable"]
    name = "decode_over_reference" + ("_portable" if fastest != "portable" else "")
    assert ratios[name] == pytest.approx(expected)
    assert figures["codec_ms_lenet_slim_4_nodes"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_size_that_is_not_allowed_is_named(run):
    with pytest.raises(SystemExit, match="--max_values=3: "):
        run("codec_benchmark", "--max_values=3")
