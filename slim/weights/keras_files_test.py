"""Files of Keras are read in each of its formats, layer by layer."""

import keras
import numpy as np
import pytest

from slim.weights import keras_files


def make_model() -> keras.Model:
    """A net with unnamed layers and with one that the suite could have named."""
    images = keras.Input((8, 8, 3))
    net = keras.layers.Conv2D(4, 3, name="Net.Branch_0.conv")(images)
    net = keras.layers.BatchNormalization(scale=False, name="Net.Branch_0.conv.BatchNorm")(net)
    net = keras.layers.Flatten()(net)
    model = keras.Model(images, keras.layers.Dense(3, name="logits")(net))
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    return model


def shapes_of(model: keras.Model) -> dict[str, tuple[int, ...]]:
    return {v.path.replace(".", "/"): tuple(v.shape) for v in model.variables}


@pytest.mark.parametrize("name", ["net.keras", "net.weights.h5", "net.h5"])
def test_a_file_of_each_format_gives_every_weight_by_name(tmp_path, name):
    model, path = make_model(), str(tmp_path / name)
    save = model.save_weights if name.endswith(".weights.h5") else model.save
    save(path)
    found = keras_files.read(path, "net", shapes_of(model))
    assert found.arrays.keys() == shapes_of(model).keys()
    for v in model.variables:
        np.testing.assert_array_equal(found.arrays[v.path.replace(".", "/")], v.numpy())
    assert not found.left_out


def test_a_nested_model_is_read_too(tmp_path):
    model, path = make_model(), str(tmp_path / "outer.weights.h5")
    keras.Sequential([keras.Input((8, 8, 3)), model]).save_weights(path)
    found = keras_files.read(path, "net", shapes_of(model))
    assert found.arrays.keys() == shapes_of(model).keys()


def test_a_dense_layer_gives_the_kernel_of_a_convolution(tmp_path):
    images = keras.Input((2, 2, 3))
    net = keras.layers.Dense(5, name="fc")(keras.layers.Flatten()(images))
    dense = keras.Model(images, net)
    dense.save_weights(tmp_path / "dense.weights.h5")
    shapes = {"fc/kernel": (2, 2, 3, 5), "fc/bias": (5,)}
    found = keras_files.read(str(tmp_path / "dense.weights.h5"), "net", shapes)
    values = np.random.default_rng(0).normal(size=(4, 2, 2, 3)).astype(np.float32)
    kernel, bias = found.arrays["fc/kernel"], found.arrays["fc/bias"]
    convolved = keras.ops.conv(values, kernel, padding="valid")[:, 0, 0] + bias
    np.testing.assert_allclose(convolved, dense(values), rtol=1e-4, atol=1e-5)


def test_a_bias_without_a_place_moves_into_batch_norm(tmp_path):
    images = keras.Input((4, 4, 3))
    net = keras.layers.Conv2D(2, 1, name="conv")(images)
    net = keras.layers.BatchNormalization(name="conv.BatchNorm")(net)
    with_bias = keras.Model(images, net)
    rng = np.random.default_rng(0)
    with_bias.set_weights([rng.uniform(0.5, 1, size=w.shape) for w in with_bias.get_weights()])
    with_bias.save_weights(tmp_path / "net.weights.h5")
    shapes = shapes_of(with_bias)
    del shapes["conv/bias"]
    found = keras_files.read(str(tmp_path / "net.weights.h5"), "net", shapes)
    net = keras.layers.Conv2D(2, 1, name="conv", use_bias=False)(images)
    without = keras.Model(images, keras.layers.BatchNormalization(name="conv.BatchNorm")(net))
    without.set_weights([found.arrays[v.path.replace(".", "/")] for v in without.variables])
    values = rng.normal(size=(2, 4, 4, 3))
    np.testing.assert_allclose(without(values), with_bias(values), rtol=1e-5, atol=1e-6)


def test_layers_of_another_net_are_named(tmp_path):
    make_model().save_weights(tmp_path / "net.weights.h5")
    shapes = {"conv1/kernel": (5, 5, 1, 20), "conv1/bias": (20,)}
    with pytest.raises(
        ValueError, match=r"its layers are not those of lenet, e\.g\. Net\.Branch_0"
    ):
        keras_files.read(str(tmp_path / "net.weights.h5"), "lenet", shapes)


@pytest.mark.parametrize("name", ["broken.h5", "broken.keras"])
def test_a_damaged_file_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"no weights")
    with pytest.raises(ValueError, match=f"{name} is not a readable file of Keras"):
        keras_files.read(str(tmp_path / name), "lenet", {})


def test_the_layers_of_keras_applications_have_names_of_the_suite():
    names = keras_files._vgg("vgg_16", ["block1_conv2", "fc1", "predictions"], [])
    assert names["block1_conv2"] == "vgg_16/conv1/conv1_2"
    assert (names["fc1"], names["predictions"]) == ("vgg_16/fc6", "vgg_16/fc8")
    named = keras_files._named_in_inception_resnet(
        "InceptionResnetV2", ["conv_7b", "block35_3_conv", "block8_10_conv"]
    )
    assert set(named.values()) == {
        "InceptionResnetV2/Conv2d_7b_1x1",
        "InceptionResnetV2/Repeat/block35_3/Conv2d_1x1",
        "InceptionResnetV2/Block8/Conv2d_1x1",
    }


def test_the_layers_of_a_deeper_net_are_refused(tmp_path):
    images = keras.Input((8, 8, 3))
    net = keras.layers.Conv2D(4, 3, name="block3_conv3")(images)
    net = keras.layers.Conv2D(4, 3, name="block3_conv4")(net)
    keras.Model(images, net).save_weights(tmp_path / "vgg19.weights.h5")
    shapes = {"vgg_16/conv3/conv3_3/kernel": (3, 3, 3, 4), "vgg_16/conv3/conv3_3/bias": (4,)}
    with pytest.raises(ValueError, match=r"not those of vgg_16, e\.g\. block3_conv4"):
        keras_files.read(str(tmp_path / "vgg19.weights.h5"), "vgg_16", shapes)
