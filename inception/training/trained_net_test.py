"""A portable model computes what the net does, with layers of Keras only."""

import errno
import json
import os
import re
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from inception.training import trained_net
from slim.datasets import dataset_info
from slim.nets import nets_factory
from terngrad.training import checkpoints


@pytest.mark.slow
@pytest.mark.parametrize("net", ["lenet_slim", "cifarnet", "inception_v1"])
def test_a_portable_model_is_loaded_by_keras_alone_and_gives_the_same_logits(tmp_path, net):
    size = 32
    model = nets_factory.build_net(net, num_classes=5, image_size=size, for_training=False)
    rng = np.random.default_rng(0)
    for v in model.variables:
        v.assign(rng.uniform(0.01, 0.1, size=v.shape))
    trained_net.portable(model).save(tmp_path / "net.keras")
    loaded = keras.models.load_model(tmp_path / "net.keras", custom_objects={})
    assert not any(type(layer).__module__.startswith("slim") for layer in loaded.layers)
    images = rng.normal(size=(2, size, size, model.inputs[0].shape[-1])).astype(np.float32)
    np.testing.assert_allclose(loaded(images), model(images), rtol=1e-4, atol=1e-6)


def test_a_checkpoint_named_from_within_its_folder_has_that_folders_classes(tmp_path, monkeypatch):
    weights = nets_factory.named_variables(nets_factory.build_net("mlp", num_classes=3))
    state = {f"variables/{name}": v for name, v in weights.items()}
    settings = json.dumps({"net": "mlp", "dataset_name": "images", "image_size": -1})
    path = checkpoints.save(str(tmp_path), state, 1, settings=settings)
    dataset_info.write_labels(str(tmp_path), ("background", "cat", "dog"))
    monkeypatch.chdir(tmp_path)
    trained = trained_net.load(os.path.basename(path), averages=False)
    assert trained.class_names == ("background", "cat", "dog")


@pytest.fixture(name="checkpoint")
def _checkpoint(tmp_path):
    weights = nets_factory.named_variables(nets_factory.build_net("mlp", num_classes=10))
    state = {f"variables/{name}": v for name, v in weights.items()}
    settings = json.dumps({"net": "mlp", "dataset_name": "mnist", "image_size": -1})
    return checkpoints.save(str(tmp_path / "train"), state, 1, settings=settings)


def _export(checkpoint, output, format_name):
    settings = {"averages": False, "with_preprocessing": False}
    trained_net.export(checkpoint, str(output), format_name, **settings)


def test_an_export_replaces_an_earlier_one_of_any_name(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(trained_net, "_write", lambda model, path, format_name: os.mkdir(path))
    output = tmp_path / "replaced"
    for _ in range(2):
        _export(checkpoint, output, "savedmodel")
        assert os.listdir(output) == ["labels.txt"]
        (output / "labels.txt").unlink()
        (output / "earlier").touch()
    assert sorted(os.listdir(tmp_path)) == ["replaced", "train"]


@pytest.mark.parametrize(
    ("method", "output", "error"),
    [
        ("save", "net.keras", OSError(errno.ENOSPC, "disk full")),
        ("export", "net", tf.errors.ResourceExhaustedError(None, None, "disk full\nat some place")),
    ],
)
def test_law_10_an_output_that_cannot_be_written_is_named(
    checkpoint, tmp_path, monkeypatch, method, output, error
):
    monkeypatch.setattr(keras.Model, method, mock.Mock(side_effect=error))
    path = tmp_path / output
    why = re.escape(f"flag --output={path}: cannot be written: disk full")
    with pytest.raises(ValueError, match=f"^{why}$"):
        _export(checkpoint, path, "keras" if method == "save" else "savedmodel")
    assert os.listdir(tmp_path) == ["train"]


def test_law_10_a_folder_that_cannot_be_made_is_named(checkpoint):
    why = "^flag --output=/proc/none/net.keras: cannot be written: No such file or directory$"
    with pytest.raises(ValueError, match=why):
        _export(checkpoint, "/proc/none/net.keras", "keras")


@pytest.mark.parametrize("averages", [True, False, None])
@pytest.mark.parametrize("holds_averages", [True, False])
def test_a_net_without_averages_is_read_unless_they_are_asked_for(
    tmp_path, caplog, holds_averages, averages
):
    state = {"variables/w": tf.Variable(1.0)}
    state |= {"averages/w": tf.Variable(2.0)} if holds_averages else {}
    settings = json.dumps({"net": "mlp", "dataset_name": "mnist", "image_size": -1})
    path = checkpoints.save(str(tmp_path), state, 1, settings=settings)
    if averages and not holds_averages:
        with pytest.raises(ValueError, match="holds no moving averages; use the weights instead"):
            trained_net.load(path, averages=averages)
        return
    found = trained_net.load(path, averages=averages)
    takes_averages = holds_averages if averages is None else averages
    assert found.arrays["w"] == (2.0 if takes_averages else 1.0)
    line = f"{path} holds no moving averages; the weights are used"
    assert (line in caplog.messages) == (averages is None and not holds_averages)
