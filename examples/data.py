"""Data for the examples: from the files of real data sets if given, else synthetic."""

from __future__ import annotations

import gzip
import os
import pickle
import sys
import tarfile
import zlib

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray]


def mnist(folder: str | None, train: int, test: int) -> tuple[Arrays, Arrays]:
    """Returns images in [0, 1], float32 [n, 28, 28, 1], and labels, for training and testing.

    Args:
      folder: with the four files of MNIST or Fashion-MNIST, plain or gzipped; None = synthetic
        images.
      train: number of images for training, at most.
      test: the same for testing.
    """
    if folder is None:
        return _synthetic_images(train, 28, 1, 0), _synthetic_images(test, 28, 1, 1)
    splits = []
    for split, count in (("train", train), ("t10k", test)):
        images = _read(folder, f"{split}-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1)
        labels = _read(folder, f"{split}-labels-idx1-ubyte", 8)
        splits.append((images[:count].astype("float32") / 255, labels[:count].astype("int32")))
    return splits[0], splits[1]


def cifar10(archive: str | None, train: int, test: int) -> tuple[Arrays, Arrays]:
    """Returns images in [0, 1], float32 [n, 32, 32, 3], and labels, for training and testing.

    Args:
      archive: cifar-10-python.tar.gz; None = synthetic images.
      train: number of images for training, at most.
      test: the same for testing.
    """
    if archive is None:
        return _synthetic_images(train, 32, 3, 0), _synthetic_images(test, 32, 3, 1)
    batches: dict[str, dict] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar.getmembers():
                if "_batch" in member.name:
                    name = os.path.basename(member.name)
                    batches[name] = pickle.load(tar.extractfile(member), encoding="bytes")
    except (OSError, EOFError, tarfile.TarError, zlib.error, pickle.UnpicklingError) as error:
        sys.exit(f"--data: {archive}: {error}")
    if len(batches) != 6:
        sys.exit(f"--data: {archive} has no five batches and a test batch of CIFAR-10")
    splits = []
    for names, count in ([f"data_batch_{i}" for i in range(1, 6)], train), (["test_batch"], test):
        pixels = np.concatenate([batches[name][b"data"] for name in names])[:count]
        labels = np.concatenate([batches[name][b"labels"] for name in names])[:count]
        images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).astype("float32") / 255
        splits.append((images, labels.astype("int32")))
    return splits[0], splits[1]


def reviews(count: int, seed: int) -> Arrays:
    """Returns synthetic reviews, and 1 for each with more praise than blame, else 0."""
    draw = np.random.default_rng(seed)
    praise = ["good", "great", "fine", "lovely", "superb", "funny", "moving", "clever", "strong"]
    blame = ["bad", "poor", "dull", "awful", "weak", "silly", "boring", "flat", "clumsy"]
    filler = ["the", "a", "this", "film", "story", "plot", "actor", "scene", "music", "is", "very"]
    texts, labels = [], []
    for _ in range(count):
        label = int(draw.integers(2))
        more, fewer = (praise, blame) if label else (blame, praise)
        words = [*draw.choice(filler, 15), *draw.choice(more, 4), *draw.choice(fewer, 2)]
        draw.shuffle(words)
        texts.append(" ".join(words))
        labels.append(label)
    return np.array(texts), np.array(labels, "int32")


def _read(folder: str, name: str, header: int) -> np.ndarray:
    path = os.path.join(folder, name)
    try:
        with open(path, "rb") if os.path.exists(path) else gzip.open(f"{path}.gz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        sys.exit(f"--data: {path}: {error}")


def _synthetic_images(count: int, side: int, channels: int, seed: int) -> Arrays:
    """Returns noisy, shifted pictures of ten patterns, which the seed does not change."""
    coarse = np.random.default_rng(7).random((10, side // 4, side // 4, channels))
    patterns = coarse.repeat(4, axis=1).repeat(4, axis=2)
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 10, count)
    shifts = draw.integers(-2, 3, (count, 2))
    images = np.stack(
        [np.roll(patterns[i], shift, (0, 1)) for i, shift in zip(labels, shifts, strict=True)]
    )
    noisy = images + draw.normal(0.0, 0.4, images.shape)
    return noisy.clip(0, 1).astype("float32"), labels.astype("int32")
