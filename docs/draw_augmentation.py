"""Draws eight augmented versions of a picture for each preprocessing that augments.

python -m docs.draw_augmentation    # writes docs/augmentation.png
"""

import argparse
from pathlib import Path

import matplotlib.figure
import numpy as np
import tensorflow as tf

from inception.results import report
from slim.preprocessing import vgg
from slim.preprocessing.preprocessing_factory import get_preprocessing

PATH = Path(__file__).with_name("augmentation.png")
KINDS = {
    "inception": 224,
    "vgg": 224,
    "alexnet": 224,
    "cifarnet": 24,
}  # and the size of the net's input
VERSIONS = 8
# Height and width of the stored picture, for nets of small images.
_STORED = {"cifarnet": (32, 32)}
_HEIGHT, _WIDTH = 300, 400
_PIXEL_INCHES = 1.1  # side of a drawn picture


def _scene() -> np.ndarray:
    """Returns a house with a tree under the sun, uint8 [300, 400, 3]."""
    rows, columns = np.mgrid[:_HEIGHT, :_WIDTH]
    image = np.empty((_HEIGHT, _WIDTH, 3))
    image[:] = (110, 170, 235) + rows[..., np.newaxis] * np.array((0.35, 0.2, 0.05))
    meadow = rows > 205 + 12 * np.sin(columns / 60)
    image[meadow] = (90, 150, 60)
    image[meadow & (np.sin(columns * 0.9) * np.sin(rows * 0.7) > 0.6)] = (120, 180, 70)
    image[np.hypot(rows - 55, columns - 335) < 28] = (255, 220, 80)
    image[(abs(columns - 105) < 8) & (rows > 140) & (rows < 235)] = (105, 70, 40)
    for row, column in ((115, 105), (135, 75), (135, 135)):
        image[np.hypot(rows - row, columns - column) < 36] = (45, 115, 50)
    image[(abs(columns - 250) < 60) & (rows > 150) & (rows < 245)] = (225, 205, 170)
    image[(rows > 95) & (rows <= 150) & (abs(columns - 250) < (rows - 95) * 1.35)] = (185, 60, 45)
    image[(abs(columns - 250) < 13) & (rows > 195) & (rows < 245)] = (120, 75, 45)
    for column in (218, 282):
        image[(abs(columns - column) < 12) & (abs(rows - 180) < 12)] = (70, 95, 130)
    return np.clip(image, 0, 255).astype(np.uint8)


def versions(kind: str) -> list[np.ndarray]:
    """Returns the picture as it is stored and its augmented versions, uint8 [h, w, 3]."""
    image = _scene()
    if kind in _STORED:
        image = tf.image.resize(image, _STORED[kind], antialias=True)
        image = tf.cast(tf.round(image), tf.uint8).numpy()
    augment = get_preprocessing(kind, is_training=True).apply
    size = KINDS[kind]
    made = [augment(image, size, tf.constant([1, n], tf.int64)).numpy() for n in range(VERSIONS)]
    return [image, *(_visible(kind, values) for values in made)]


def draw(path: str) -> None:
    """Draws a row for each kind of preprocessing, with the stored picture first."""
    columns = VERSIONS + 1
    figure = matplotlib.figure.Figure(
        figsize=(_PIXEL_INCHES * columns, _PIXEL_INCHES * len(KINDS)), layout="constrained"
    )
    grid = figure.subplots(len(KINDS), columns)
    for row, kind in zip(grid, KINDS, strict=True):
        for axes, image in zip(row, versions(kind), strict=True):
            axes.imshow(image, interpolation="nearest" if kind in _STORED else None)
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(kind)
    grid[0][0].set_title("stored", fontsize="small")
    grid[0][1 + VERSIONS // 2].set_title("augmented", fontsize="small")
    report.save(figure, path)


def _visible(kind: str, values: np.ndarray) -> np.ndarray:
    """Turns a net's input into pixels again; CifarNet's has lost their brightness and contrast."""
    less_means = -np.array(vgg.means(3)), 255 - np.array(vgg.means(3))
    low, high = {
        "inception": (-1.0, 1.0),
        "vgg": less_means,
        "alexnet": less_means,
        "cifarnet": (values.min(), values.max()),
    }[kind]
    return np.clip(255 * (values - low) / (high - low), 0, 255).astype(np.uint8)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # there is nothing to choose
    draw(str(PATH))
