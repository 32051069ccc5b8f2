"""The blocks of docs/keras.md do what the page says."""

import keras
import numpy as np

import terngrad.keras
from docs import markdown

_PAGE = markdown.REPO / "docs" / "keras.md"


def test_the_blocks_run():
    blocks = [b.text for b in markdown.blocks(_PAGE) if b.marker == "tested: docs/keras_test.py"]
    assert len(blocks) == 4
    draw = np.random.default_rng(0)
    images, labels = draw.random((96, 4)), draw.integers(0, 3, 96)
    group = terngrad.Group()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    optimizer = terngrad.keras.distribute(keras.optimizers.Adam(), group)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    names = {"images": images, "labels": labels, "x_test": images, "y_test": labels}
    names |= {"keras": keras, "terngrad": terngrad, "group": group, "model": model}
    for block in blocks:
        exec(block, names)
    callbacks = [names["Halving"](), terngrad.keras.DistributedCallback(group)]
    model.fit(names["dataset"], epochs=2, verbose=0, callbacks=callbacks)
    assert int(model.optimizer.iterations) == 6
    assert 0 <= names["accuracy"] <= 1
    assert names["probabilities"].shape == (96, 3)
