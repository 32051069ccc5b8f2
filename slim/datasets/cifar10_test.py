"""Laws of reading CIFAR-10: all forms of the source are equal, and pickles run no code."""

import io
import os
import pathlib
import pickle
import tarfile

import numpy as np
import pytest

from slim.datasets import cifar10

_COMPLETE = pathlib.Path(__file__).parents[3] / "shared" / "data" / "cifar10"
_NAMES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


def _make_batches(num_images=4, keys=bytes):
    rng = np.random.default_rng(0)
    for place, name in enumerate(_NAMES):
        data = rng.integers(0, 256, (num_images, 3072), np.uint8)
        batch = {"data": data, "labels": [(place + i) % 10 for i in range(num_images)]}
        yield name, {key.encode() if keys is bytes else key: batch[key] for key in batch}


def _write_folder(folder, **options):
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch in _make_batches(**options):
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def _write_archive(path, names=_NAMES):
    with tarfile.open(path, "w:gz") as archive:
        for name, batch in _make_batches():
            if name in names:
                content = pickle.dumps(batch, protocol=2)
                member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def _equal(splits, others):
    return all(
        np.array_equal(mine, other)
        for split in ("train", "test")
        for mine, other in zip(splits[split], others[split], strict=True)
    )


def test_archive_folder_and_folder_above_it_give_the_same(tmp_path):
    batches = tmp_path / "above" / "cifar-10-batches-py"
    _write_folder(batches)
    _write_archive(tmp_path / "cifar-10-python.tar.gz")
    splits = cifar10.load(str(batches))
    assert splits["train"][0].shape == (20, 32, 32, 3) and splits["test"][0].shape == (4, 32, 32, 3)
    assert _equal(cifar10.load(str(tmp_path / "above")), splits)
    assert _equal(cifar10.load(str(tmp_path)), splits)
    _write_folder(batches, keys=str)
    assert _equal(cifar10.load(str(batches)), splits)


def test_pixels_and_labels_are_where_the_format_has_them(tmp_path):
    _write_folder(tmp_path)
    images, labels = cifar10.load(str(tmp_path))["train"]
    _, first = next(_make_batches())
    assert images[2, 5, 7, 1] == first[b"data"][2, 1024 + 5 * 32 + 7]
    assert labels.tolist()[:8] == [0, 1, 2, 3, 1, 2, 3, 4]


def test_missing_batch_is_named(tmp_path):
    _write_folder(tmp_path)
    os.remove(tmp_path / "data_batch_3")
    with pytest.raises(ValueError, match="data_batch_3 is missing"):
        cifar10.load(str(tmp_path))
    _write_archive(tmp_path / "cifar-10-python.tar.gz", names=_NAMES[:-1])
    for name in _NAMES:
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"cifar-10-python.tar.gz: test_batch is missing"):
        cifar10.load(str(tmp_path))


def test_folder_without_the_files_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"neither cifar-10-python.tar.gz nor cifar-10-batches-py"):
        cifar10.load(str(tmp_path))


def test_truncated_archive_and_batch_are_named(tmp_path):
    archive = tmp_path / "cifar-10-python.tar.gz"
    _write_archive(archive)
    os.truncate(archive, archive.stat().st_size // 2)
    with pytest.raises(ValueError, match=r"cifar-10-python.tar.gz: damaged archive"):
        cifar10.load(str(tmp_path))
    _write_folder(tmp_path)
    os.truncate(tmp_path / "data_batch_2", 500)
    with pytest.raises(ValueError, match="data_batch_2: not a batch of CIFAR-10"):
        cifar10.load(str(tmp_path))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"data": np.zeros((2, 3000), np.uint8), "labels": [0, 1]}, "not a batch of CIFAR-10"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "2 images with 1 labels"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]}, r"labels lie in \[0, 10\]"),
        ({"labels": [0]}, "not a batch of CIFAR-10"),
        (
            {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1.5]},
            r"not a batch of CIFAR-10 \(its float64 values are not all int64",
        ),
        (
            {"data": np.full((2, 3072), 256, np.int16), "labels": [0, 1]},
            r"not a batch of CIFAR-10 \(its int16 values are not all uint8",
        ),
        ([1, 2], "not a batch of CIFAR-10"),
    ],
)
def test_contents_that_are_not_cifar10_are_named(tmp_path, batch, message):
    _write_folder(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch))
    with pytest.raises(ValueError, match=f"test_batch: {message}"):
        cifar10.load(str(tmp_path))


class _Intruder:
    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.mkdir, (self._path,)


def test_pickle_cannot_run_code(tmp_path):
    _write_folder(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps(_Intruder(str(tmp_path / "made"))))
    with pytest.raises(ValueError, match="mkdir does not belong in a batch"):
        cifar10.load(str(tmp_path))
    assert not (tmp_path / "made").exists()


@pytest.mark.slow
@pytest.mark.skipif(not _COMPLETE.is_dir(), reason=f"no CIFAR-10 in {_COMPLETE}")
def test_complete_archive_has_balanced_classes():
    splits = cifar10.load(str(_COMPLETE))
    assert np.bincount(splits["train"][1]).tolist() == [5000] * 10
    assert np.bincount(splits["test"][1]).tolist() == [1000] * 10
