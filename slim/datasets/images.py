"""One's own pictures, a folder for each class; labels.txt beside the records names the classes."""

from __future__ import annotations

from slim.datasets.dataset_info import DatasetInfo

INFO = DatasetInfo(
    name="images",
    splits=("train", "validation"),
    class_names=None,
    image_shape=(None, None, 3),
    converter="inception.data.build_image_data --output_directory={folder}",
)
