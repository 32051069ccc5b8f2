"""The blocks of docs/keras.md do what the page says."""

import keras
import numpy as np
import tensorflow as tf

import terngrad.keras
from docs import markdown

_PAGE = markdown.REPO / "docs" / "keras.md"


def test_the_blocks_run():
    blocks = [b.text for b in markdown.blocks(_PAGE) if b.marker == "tested: docs/keras_test.py"]
    assert len(blocks) == 5
    draw = np.random.default_rng(0)
    images, labels = draw.random((96, 4)), draw.integers(0, 3, 96)
    group = terngrad.Group()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    optimizer = terngrad.keras.distribute(keras.optimizers.Adam(), group, size_to_binarize=1)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    names = {"images": images, "labels": labels, "x_test": images, "y_test": labels}
    names |= {"tf": tf, "keras": keras, "terngrad": terngrad, "group": group, "model": model}
    for block in blocks:
        exec(block, names)
    callbacks = [names["Halving"](), terngrad.keras.DistributedCallback(group)]
    model.fit(names["dataset"], epochs=2, verbose=0, callbacks=callbacks)
    assert int(model.optimizer.iterations) == 6
    assert 0 <= names["accuracy"] <= 1
    assert names["probabilities"].shape == (96, 3)


class Applied:
    """An asynchronous training of five steps that needs no servers."""

    def __init__(self, variables):
        self.steps = tf.Variable(0)
        self._variables = variables

    @property
    def is_over(self):
        return int(self.steps) == 5

    def apply(self, gradients):
        self.steps.assign_add(1)
        for variable, gradient in zip(self._variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)


def test_fit_pushes_gradients_until_the_training_is_over():
    (text,) = (b.text for b in markdown.blocks(_PAGE) if "class Pushing" in b.text)
    names = {"tf": tf, "keras": keras}
    exec(text, names)
    model = names["Pushing"]([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(loss="mse", metrics=["mae"], jit_compile=False)
    model.training = Applied(model.trainable_variables)
    data = np.ones((8, 4), "float32"), np.zeros((8, 3), "float32")
    found = model.fit(
        *data, batch_size=4, epochs=9, shuffle=False, verbose=0, callbacks=[names["StopAtTheEnd"]()]
    )
    assert found.history["loss"][0] > found.history["loss"][-1] > 0
    assert found.history["mae"][0] > 0
    assert int(model.training.steps) == 5
