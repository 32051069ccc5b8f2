"""Fashion-MNIST is a data set of its own, with its own names and checksums."""

import hashlib

from slim.conversion import convert
from slim.datasets import dataset_factory, fashion_mnist, finding, mnist
from slim.testing import write_mnist


def test_plain_files_are_converted_under_the_names_of_clothes_without_a_warning(tmp_path, caplog):
    write_mnist(tmp_path)
    convert.convert("fashion_mnist", str(tmp_path / "out"), source_dir=str(tmp_path))
    found = dataset_factory.get_dataset("fashion_mnist", "train", str(tmp_path / "out"))
    assert found.num_examples == 12 and found.image_shape == (28, 28, 1)
    assert found.class_names == fashion_mnist.INFO.class_names
    assert "0:T-shirt/top\n1:trouser\n" in (tmp_path / "out/labels.txt").read_text()
    assert not caplog.text
    assert "fashion_mnist" in finding.get_info("fashion_mnist").command("x")


def test_gzipped_files_are_compared_with_the_published_checksums(tmp_path, caplog, monkeypatch):
    write_mnist(tmp_path, suffix=".gz")
    fashion_mnist.load(str(tmp_path))
    (record,) = caplog.records
    assert "train-images-idx3-ubyte.gz, " in record.getMessage()
    assert "are not as fashion_mnist was published" in record.getMessage()
    caplog.clear()
    for name in sum(mnist.FILES.values(), ()):
        stored = (tmp_path / f"{name}.gz").read_bytes()
        monkeypatch.setitem(fashion_mnist._SHA256, name, hashlib.sha256(stored).hexdigest())
    fashion_mnist.load(str(tmp_path))
    assert not caplog.text
