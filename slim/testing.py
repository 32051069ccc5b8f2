"""Small data sets in the formats of the real ones, and a web server to download them from."""

from __future__ import annotations

import contextlib
import functools
import gzip
import http.server
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from slim.conversion import shard_writer
from slim.conversion.options import DEFAULT
from slim.conversion.sources import ArraySource
from slim.datasets import files, mnist


def write_mnist(
    folder: Path, num_images: int = 12, suffix: str = ""
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Writes MNIST's four IDX files with random images.

    Args:
      folder: folder for the files.
      num_images: images in each split.
      suffix: "" or a suffix of the files' names, e.g. ".gz"; with a suffix they are compressed.

    Returns:
      Images uint8 [num_images, 28, 28, 1] and labels uint8 [num_images] of each split.
    """
    rng = np.random.default_rng(0)
    splits = {}
    for split, names in mnist.FILES.items():
        images = rng.integers(0, 256, (num_images, 28, 28), np.uint8)
        labels = (np.arange(num_images) % 10).astype(np.uint8)
        for name, array in zip(names, (images, labels), strict=True):
            content = mnist.format_idx(array)
            (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)
        splits[split] = images[..., np.newaxis], labels
    return splits


def write_mnist_records(folder: Path, split: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Writes the record file of a split of MNIST.

    Args:
      folder: folder for the file.
      split: name of the split.
      images: uint8 [N, 28, 28, 1].
      labels: int64 [N].
    """
    shares = {str(folder / f"{split}-mnist.tfrecord"): np.arange(len(labels))}
    source = ArraySource(images, labels, mnist.INFO)
    with files.progress_bar() as bar:
        shard_writer.write_shards(shares, source, DEFAULT, bar, lambda shard, lines: None)


def write_digits(folder: Path, count: int) -> None:
    """Writes the record files of the first digits of each split of the repository's sample."""
    sample = Path(mnist.__file__).parent / "mnist_sample"
    for split, (images, labels) in mnist.load(str(sample)).items():
        write_mnist_records(folder, split, images[:count], labels[:count])


def write_pictures(folder: Path, counts: Mapping[str, int], suffix: str = ".jpg") -> None:
    """Writes pictures of one colour, which differ in width, into a folder for each class.

    Args:
      folder: gets the folders.
      counts: number of pictures by the name of the class.
      suffix: of the files' names; it decides their format.
    """
    for number, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            image = Image.new("RGB", (20 + index, 16), (40 * number, 200, 100))
            image.save(folder / name / f"{name}_{index}{suffix}")


def with_extraneous_bytes(jpeg: bytes, count: int = 20) -> bytes:
    """Returns a JPEG with bytes before its end that libjpeg warns of; the picture is the same."""
    return jpeg[:-2] + bytes([0x12]) * count + jpeg[-2:]


def write_imagenet(folder: Path, counts: Mapping[str, int], num_validation: int) -> None:
    """Writes ImageNet's archives of training and validation pictures, and the list of labels.

    Args:
      folder: gets the three files, and the folders train and validation of their content.
      counts: number of training pictures by synset.
      num_validation: number of validation pictures, whose synsets take turns.
    """
    write_pictures(folder / "train", counts, ".JPEG")
    synsets = sorted(counts)
    (folder / "validation").mkdir()
    for number in range(num_validation):
        name = f"ILSVRC2012_val_{number + 1:08d}.JPEG"
        Image.new("RGB", (30, 20 + number), (200, 90, 10)).save(folder / "validation" / name)
    labels = "".join(f"{synsets[n % len(synsets)]}\n" for n in range(num_validation))
    (folder / "imagenet_2012_validation_synset_labels.txt").write_text(labels)
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as archive:
        for path in sorted((folder / "validation").iterdir()):
            archive.add(path, path.name)
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as archive:
        for synset in synsets:
            inner_path = folder / f"{synset}.tar"
            with tarfile.open(inner_path, "w") as inner:
                for path in sorted((folder / "train" / synset).iterdir()):
                    inner.add(path, path.name)
            archive.add(inner_path, inner_path.name)
            inner_path.unlink()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Logs nothing."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serves the files of a folder; yields the URL of the folder."""
    handler = functools.partial(_Silent, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
