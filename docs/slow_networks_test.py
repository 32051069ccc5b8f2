"""The loop and the callback of docs/slow-networks.md exchange as the page says."""

import inspect

import keras
import pytest
import tensorflow as tf

import terngrad.keras
from docs import markdown

_PAGE = markdown.REPO / "docs" / "slow-networks.md"


def block(part):
    (text,) = (b.text for b in markdown.blocks(_PAGE) if b.language == "python" and part in b.text)
    return text


@pytest.fixture(name="names")
def _names(monkeypatch):
    """The names that the page says are the program's; each process is alone."""
    monkeypatch.setattr(terngrad, "join", terngrad.Group, raising=False)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    labels = tf.range(32 * 32) % 3
    data = tf.data.Dataset.from_tensor_slices((tf.one_hot(labels, 4), labels))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return {
        "terngrad": terngrad,
        "tf": tf,
        "keras": keras,
        "model": model,
        "optimizer": optimizer,
        "loss": loss_of,
        "loss_of": loss_of,
        "metrics": ["accuracy"],
        "data": data,
    }


def test_the_loop_exchanges_after_each_16_of_its_32_steps(names, capsys):
    exec(block("tf.GradientTape"), names)
    lines = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[1].rstrip(",")) for line in lines if line.startswith("loss ")]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert int(names["local"].state.reducer.step) == 2


def test_the_callback_of_keras_exchanges_after_each_16_of_its_32_steps(names):
    exec(block("keras.LocalSteps"), names)
    history = names["model"].history.history
    assert {"loss", "accuracy", "bytes_sent", "bits_per_parameter"} == history.keys()
    assert int(names["model"].optimizer.iterations) == 32


def test_the_loop_has_at_most_ten_lines():
    assert len(block("tf.GradientTape").splitlines()) <= 10


def test_the_page_names_all_arguments():
    text = _PAGE.read_text(encoding="utf-8")
    parameters = inspect.signature(terngrad.LocalSteps).parameters
    for name in list(parameters)[2:-1]:
        assert f"`{name}`" in text, f"LocalSteps takes {name}"
