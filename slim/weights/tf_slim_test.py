"""Checkpoints of TensorFlow 1 are read under the suite's names."""

import numpy as np
import pytest
import tensorflow as tf

from slim.nets import nets_factory
from slim.weights import tf_slim

_SCOPE = "InceptionV3/Conv2d_1a_3x3"
_PUBLISHED = {  # name there -> name here
    f"{_SCOPE}/weights": f"{_SCOPE}/kernel",
    f"{_SCOPE}/BatchNorm/beta": f"{_SCOPE}/BatchNorm/beta",
    f"{_SCOPE}/BatchNorm/moving_mean": f"{_SCOPE}/BatchNorm/moving_mean",
    f"{_SCOPE}/BatchNorm/moving_variance": f"{_SCOPE}/BatchNorm/moving_variance",
    "InceptionV3/Logits/Conv2d_1c_1x1/biases": "InceptionV3/Logits/Conv2d_1c_1x1/bias",
}
_FORMATS = tf.compat.v1.train.SaverDef
_OTHERS = {
    "global_step",
    f"{_SCOPE}/weights/ExponentialMovingAverage",
    f"{_SCOPE}/weights/RMSProp_1",
}


def write(path: str, names, version=_FORMATS.V2) -> dict[str, np.ndarray]:
    """Writes a checkpoint as TensorFlow 1 does; returns its values by name."""
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=(3,)).astype(np.float32) for name in sorted(names)}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.compat.v1.get_variable(n, initializer=v) for n, v in values.items()]
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(variables, write_version=version)
        saver.save(session, path, write_meta_graph=False)
    return values


@pytest.mark.parametrize("version", ["V1", "V2"])
def test_a_checkpoint_of_either_format_gives_every_weight_and_names_the_rest(tmp_path, version):
    path = str(tmp_path / "inception_v3.ckpt")
    values = write(path, {*_PUBLISHED, *_OTHERS}, getattr(_FORMATS, version))
    found = tf_slim.read(path, "inception_v3")
    assert found.arrays.keys() == set(_PUBLISHED.values())
    for there, here in _PUBLISHED.items():
        np.testing.assert_array_equal(found.arrays[here], values[there])
    assert set(found.left_out) == _OTHERS


def test_small_nets_have_no_scope_here(tmp_path):
    path = str(tmp_path / "lenet.ckpt")
    layers = ("conv1", "conv2", "fc3", "fc4")
    write(path, {f"LeNet/{layer}/{part}" for layer in layers for part in ("weights", "biases")})
    found = tf_slim.read(path, "lenet_slim")
    net = nets_factory.build_net("lenet_slim", num_classes=10)
    assert found.arrays.keys() == nets_factory.named_variables(net).keys()


def test_a_checkpoint_without_weights_is_named(tmp_path):
    path = str(tmp_path / "other.ckpt")
    write(path, {"global_step"})
    with pytest.raises(ValueError, match=r"other\.ckpt holds no weights with TF-Slim's names"):
        tf_slim.read(path, "inception_v3")


def test_a_file_that_is_no_checkpoint_is_named(tmp_path):
    (tmp_path / "model.ckpt").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"model\.ckpt is not a readable checkpoint"):
        tf_slim.read(str(tmp_path / "model.ckpt"), "inception_v3")


def test_a_checkpoint_that_was_cut_off_is_named(tmp_path):
    path = str(tmp_path / "lenet.ckpt")
    write(path, {"LeNet/conv1/weights", "LeNet/conv1/biases"})
    (data,) = tmp_path.glob("*.data-*")
    data.write_bytes(data.read_bytes()[:3])
    with pytest.raises(ValueError, match=r"lenet\.ckpt is not a readable checkpoint"):
        tf_slim.read(path, "lenet_slim")
