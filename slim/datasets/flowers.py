"""Flowers: 3670 photographs of five kinds; labels.txt beside the records names them."""

from __future__ import annotations

from slim.datasets.dataset_info import DatasetInfo

INFO = DatasetInfo(
    name="flowers",
    splits=("train", "validation"),
    class_names=None,
    image_shape=(None, None, 3),
    converter="inception.download_and_preprocess_flowers {folder}",
)
