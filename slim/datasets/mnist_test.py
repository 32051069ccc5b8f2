"""Laws of reading MNIST: IDX files are read exactly, and errors name what is wrong."""

import os
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slim.datasets import mnist
from slim.datasets.make_mnist_sample import make_sample
from slim.testing import write_mnist

_SAMPLE = pathlib.Path(__file__).parent / "mnist_sample"
_COMPLETE = pathlib.Path(__file__).parents[3] / "shared" / "data" / "mnist"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_plain_and_gzipped_files_give_what_was_written(tmp_path, suffix):
    written = write_mnist(tmp_path, suffix=suffix)
    for split, (images, labels) in mnist.load(str(tmp_path)).items():
        np.testing.assert_array_equal(images, written[split][0])
        np.testing.assert_array_equal(labels, written[split][1])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=3))
def test_idx_survives_the_round_trip(shape):
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    parsed = mnist.parse_idx(mnist.format_idx(array), "file", len(shape))
    np.testing.assert_array_equal(parsed, array)


@given(st.data())
def test_idx_of_any_other_length_is_refused(data):
    content = mnist.format_idx(np.zeros((3, 4, 5), np.uint8))
    length = data.draw(st.integers(4, 2 * len(content)).filter(lambda n: n != len(content)))
    with pytest.raises(ValueError, match=r"^file: \d+ bytes, must be"):
        mnist.parse_idx(content[:length].ljust(length, b"\1"), "file", 3)


@pytest.mark.parametrize("content", [b"", b"\0\0\x08\x01", b"\0\0\x0d\x03", b"<htm"])
def test_wrong_magic_number_is_named(content):
    with pytest.raises(ValueError, match=r"^file: magic number is .* must be 0x00000803$"):
        mnist.parse_idx(content, "file", 3)


def test_missing_file_and_truncated_gzip_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"holds neither train-images-idx3-ubyte nor .*gz$"):
        mnist.load(str(tmp_path))
    write_mnist(tmp_path, suffix=".gz")
    os.truncate(tmp_path / "t10k-images-idx3-ubyte.gz", 3000)
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte.gz: damaged gzip file"):
        mnist.load(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-labels-idx1-ubyte", np.full(12, 10), r"labels lie in \[10, 10\], must lie in"),
        ("train-labels-idx1-ubyte", np.zeros(11), "12 images with 11 labels; must be equal"),
        ("train-images-idx3-ubyte", np.zeros((12, 28, 29)), r"images are \(28, 29, 1\), must be"),
    ],
)
def test_contents_that_are_not_mnist_are_named(tmp_path, name, array, message):
    write_mnist(tmp_path)
    (tmp_path / name).write_bytes(mnist.format_idx(array.astype(np.uint8)))
    with pytest.raises(ValueError, match=message):
        mnist.load(str(tmp_path))


def test_another_data_set_in_the_same_format_is_taken_with_a_warning(tmp_path, caplog):
    write_mnist(tmp_path)
    assert set(mnist.load(str(tmp_path))) == {"train", "test"}
    (record,) = caplog.records
    names = ", ".join(sum(mnist.FILES.values(), ()))
    assert f"{tmp_path}: {names} are not as mnist was published" in record.getMessage()


def test_sample_is_mnist_and_small(caplog):
    splits = mnist.load(str(_SAMPLE))
    assert {split: len(labels) for split, (_, labels) in splits.items()} == {
        "train": 10_000,
        "test": 5_000,
    }
    assert min(np.bincount(splits["train"][1])) > 900
    assert sum(file.stat().st_size for file in _SAMPLE.iterdir()) < 3_000_000
    assert not caplog.text


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not _COMPLETE.is_dir(), reason=f"no complete MNIST in {_COMPLETE}")
def test_sample_is_made_from_the_complete_data_set(tmp_path, caplog):
    make_sample(str(_COMPLETE), str(tmp_path))
    for split, (images, labels) in mnist.load(str(tmp_path)).items():
        sample_images, sample_labels = mnist.load(str(_SAMPLE))[split]
        np.testing.assert_array_equal(images, sample_images)
        np.testing.assert_array_equal(labels, sample_labels)
    assert not caplog.text
