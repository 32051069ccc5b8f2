"""The benchmark runs, and its figures are consistent."""

import numpy as np
import pytest
import tensorflow as tf


@pytest.mark.slow
def test_the_ratio_is_the_median_over_the_rounds(run, digits, tmp_path):
    picture = tmp_path / "times.png"
    options = ("--rounds=2", "--slice_secs=0", f"--png={picture}")
    figures = run("input_benchmark", f"--mnist_dir={digits}", *options)
    (comparison,) = figures["comparisons"]
    times = comparison["times"]["wall"]
    assert {name: len(values) for name, values in times.items()} == {"synthetic": 2, "records": 2}
    expected = np.median(np.divide(times["records"], times["synthetic"]))
    assert comparison["ratios"]["ms/step, records to synthetic"] == pytest.approx(expected)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_a_folder_it_says_what_is_missing(run):
    with pytest.raises(SystemExit, match="--mnist_dir=: this, --cifar10_dir or --jpeg_dir must be"):
        run("input_benchmark")


@pytest.mark.slow
def test_photographs_are_compared_with_bare_decoding(run, tmp_path):
    rng = np.random.default_rng(0)
    for index in range(3):
        pixels = rng.integers(0, 256, (40 + index, 50, 3), np.uint8)
        path = tmp_path / "source" / f"class{index}" / "a.JPEG"
        path.parent.mkdir(parents=True)
        path.write_bytes(tf.io.encode_jpeg(pixels).numpy())
    options = ("--rounds=2", "--slice_secs=0", "--images=32", "--num_preprocess_threads=2")
    figures = run("input_benchmark", f"--jpeg_dir={tmp_path / 'source'}", *options)
    (pipelines,) = figures["comparisons"]
    times = pipelines["times"]["wall"]
    for name in ("JPEG, vgg", "JPEG, inception", "JPEG, evaluation", "raw, inception"):
        expected = 1 / np.median(np.divide(times[name], times["bare JPEG"]))
        found = pipelines["ratios"][f"images/s, {name} to bare JPEG"]
        assert found == pytest.approx(expected)


def test_a_folder_without_jpegs_is_named(run, tmp_path):
    with pytest.raises(SystemExit, match=f"={tmp_path}: there is no .jpg or .jpeg below it"):
        run("input_benchmark", f"--jpeg_dir={tmp_path}")


@pytest.mark.parametrize("kept", [0, 200, 600])
def test_a_broken_jpeg_is_named(run, tmp_path, kept):
    path = tmp_path / "broken.jpg"
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    path.write_bytes(tf.io.encode_jpeg(pixels).numpy()[:kept])
    text = f"flag --jpeg_dir={tmp_path}: {path} cannot be decoded: [^\n]+$"
    with pytest.raises(SystemExit, match=text):
        run("input_benchmark", f"--jpeg_dir={tmp_path}")
