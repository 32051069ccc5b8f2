"""Fashion-MNIST is a data set of its own, with its own names and checksums."""

import gzip
import hashlib

import numpy as np
import pytest

from slim.conversion import convert
from slim.datasets import dataset_factory, fashion_mnist, mnist
from slim.testing import write_mnist


def test_plain_files_are_converted_under_the_names_of_clothes_without_a_warning(tmp_path, caplog):
    write_mnist(tmp_path)
    convert.convert("fashion_mnist", str(tmp_path / "out"), source_dir=str(tmp_path))
    found = dataset_factory.get_dataset("fashion_mnist", "train", str(tmp_path / "out"))
    assert found.num_examples == 12 and found.image_shape == (28, 28, 1)
    assert found.class_names == fashion_mnist.INFO.class_names
    assert "0:T-shirt/top\n1:trouser\n" in (tmp_path / "out/labels.txt").read_text()
    assert not caplog.text
    assert "fashion_mnist" in dataset_factory.get_info("fashion_mnist").command("x")


def test_gzipped_files_are_compared_with_the_published_checksums(tmp_path, caplog, monkeypatch):
    write_mnist(tmp_path, suffix=".gz")
    fashion_mnist.load(str(tmp_path))
    (record,) = caplog.records
    assert "train-images-idx3-ubyte.gz, " in record.getMessage()
    assert "are not as fashion_mnist was published" in record.getMessage()
    caplog.clear()
    for name in sum(mnist.FILES.values(), ()):
        content = gzip.decompress((tmp_path / f"{name}.gz").read_bytes())
        monkeypatch.setitem(mnist.FASHION_SHA256, name, hashlib.sha256(content).hexdigest())
    fashion_mnist.load(str(tmp_path))
    assert not caplog.text


@pytest.fixture(name="clothes")
def _clothes(tmp_path, monkeypatch):
    """A folder whose files have Fashion-MNIST's checksums."""
    write_mnist(tmp_path)
    for name in sum(mnist.FILES.values(), ()):
        digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        monkeypatch.setitem(mnist.FASHION_SHA256, name, digest)
    return tmp_path


def test_its_files_taken_for_mnist_name_the_flag_in_one_line(clothes, caplog):
    mnist.load(str(clothes))
    (record,) = caplog.records
    assert record.getMessage().endswith(
        "anyway; for fashion_mnist give --dataset_name=fashion_mnist"
    )
    caplog.clear()
    fashion_mnist.load(str(clothes))
    assert not caplog.text


def test_other_files_name_no_flag(clothes, caplog):
    (clothes / "t10k-labels-idx1-ubyte").write_bytes(mnist.format_idx(np.zeros(12, np.uint8)))
    mnist.load(str(clothes))
    assert "are not as mnist was published" in caplog.text
    assert "--dataset_name" not in caplog.text
    with pytest.raises(ValueError, match=r"--dataset_dir=\S+$"):
        dataset_factory.find_files("mnist", "train", str(clothes))


def test_a_program_for_mnist_names_the_flags_for_a_folder_with_its_files_or_records(clothes):
    with pytest.raises(
        ValueError, match=r"add --source_dir=\S+, and --dataset_name=fashion_mnist in all programs$"
    ):
        dataset_factory.find_files("mnist", "train", str(clothes))
    convert.convert("fashion_mnist", str(clothes), source_dir=str(clothes))
    with pytest.raises(ValueError, match="of fashion_mnist: for these add --dataset_name=fashion_"):
        dataset_factory.find_files("mnist", "train", str(clothes))
