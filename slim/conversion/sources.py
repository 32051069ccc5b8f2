"""The sources of a conversion: images of one split by index, in memory or in picture files."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from slim.conversion import picture_reader
from slim.conversion.options import Form
from slim.datasets.dataset_info import DatasetInfo
from slim.datasets.picture_files import Pictures, describe
from slim.datasets.records import ImageRecord


class Source(Protocol):
    """The images of one split.

    Attributes:
      at_once: images that one call of `records` should read.
      description: identifies these images and the form in which they are stored.
    """

    at_once: int
    description: str

    def __len__(self) -> int:
        """Number of images."""

    def part(self, indices: Sequence[int]) -> Source:
        """Returns some of the images, in this order, as another process needs them."""

    def records(self, indices: Sequence[int], warn: Callable[[str], None]) -> Iterator[ImageRecord]:
        """Yields the records of some images; several threads call it at once.

        Args:
          indices: of the images.
          warn: is called with a line about an image with a fault.

        Raises:
          ValueError: an image is broken; the text says which one and why.
        """


class ArraySource:
    """Images in memory, stored as PNG."""

    at_once = 64  # encoding them in one operation takes a quarter of the time

    def __init__(self, images: np.ndarray, labels: np.ndarray, info: DatasetInfo) -> None:
        """Takes images uint8 [N, H, W, C], labels int64 [N], and the names of their classes."""
        self._images, self._labels, self._info = images, labels, info

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def description(self) -> str:
        """See base class."""
        digest = hashlib.sha256(np.ascontiguousarray(self._images))
        digest.update(np.ascontiguousarray(self._labels, np.int64))
        return f"{len(self)} images ({digest.hexdigest()[:16]})"

    def part(self, indices: Sequence[int]) -> ArraySource:
        """See base class."""
        return ArraySource(self._images[indices], self._labels[indices], self._info)

    def records(self, indices: Sequence[int], warn: Callable[[str], None]) -> Iterator[ImageRecord]:
        """See base class."""
        del warn
        encoded = tf.io.encode_png(self._images[indices], self._info.png_compression).numpy()
        for index, png in zip(indices, encoded, strict=True):
            label = int(self._labels[index])
            text = self._info.class_names[label]
            yield ImageRecord(png, "png", *self._images.shape[1:], label, text)


class PictureSource:
    """Picture files, stored as RGB JPEG or as RGB pixels."""

    at_once = 1

    def __init__(self, pictures: Pictures, form: Form) -> None:
        """Takes the pictures and how they are stored."""
        self._pictures, self._form = pictures, form

    def __len__(self) -> int:
        return len(self._pictures.items)

    @property
    def description(self) -> str:
        """See base class."""
        return f"{describe(self._pictures.items)} as {self._form}"

    def part(self, indices: Sequence[int]) -> PictureSource:
        """See base class."""
        items = [self._pictures.items[index] for index in indices]
        return PictureSource(dataclasses.replace(self._pictures, items=items), self._form)

    def records(self, indices: Sequence[int], warn: Callable[[str], None]) -> Iterator[ImageRecord]:
        """See base class."""
        for index in indices:
            picture = self._pictures.items[index]
            try:
                stored = picture_reader.read(
                    picture.read(), self._form, is_upright=self._pictures.is_upright
                )
            except (OSError, ValueError) as error:
                raise ValueError(f"{picture.place}: {error}") from None
            if stored.warning:
                warn(f"{picture.place}: {stored.warning}; encoded anew")
            yield ImageRecord(
                stored.encoded,
                stored.format,
                stored.height,
                stored.width,
                channels=3,
                label=picture.label,
                text=self._pictures.class_names[picture.label],
                synset=picture.synset,
                filename=picture.name,
                boxes=picture.boxes,
            )
