"""Weights of TF-Slim and of Keras are read under the suite's names, and give Keras' outputs."""

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from slim import pretrained_weights
from slim.nets import nets_factory

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
    found = pretrained_weights.read_tf_slim(path, "inception_v3")
    assert found.arrays.keys() == set(_PUBLISHED.values())
    for there, here in _PUBLISHED.items():
        np.testing.assert_array_equal(found.arrays[here], values[there])
    assert set(found.left_out) == _OTHERS


def test_small_nets_have_no_scope_here(tmp_path):
    path = str(tmp_path / "lenet.ckpt")
    layers = ("conv1", "conv2", "fc3", "fc4")
    write(path, {f"LeNet/{layer}/{part}" for layer in layers for part in ("weights", "biases")})
    found = pretrained_weights.read_tf_slim(path, "lenet_slim")
    net = nets_factory.build_net("lenet_slim", num_classes=10)
    assert found.arrays.keys() == nets_factory.named_variables(net).keys()


def test_a_checkpoint_without_weights_is_named(tmp_path):
    path = str(tmp_path / "other.ckpt")
    write(path, {"global_step"})
    with pytest.raises(ValueError, match=r"other\.ckpt holds no weights with TF-Slim's names"):
        pretrained_weights.read_tf_slim(path, "inception_v3")


def test_a_file_that_is_no_checkpoint_is_named(tmp_path):
    (tmp_path / "model.ckpt").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"model\.ckpt is not a readable checkpoint"):
        pretrained_weights.read_tf_slim(str(tmp_path / "model.ckpt"), "inception_v3")


def test_a_checkpoint_that_was_cut_off_is_named(tmp_path):
    path = str(tmp_path / "lenet.ckpt")
    write(path, {"LeNet/conv1/weights", "LeNet/conv1/biases"})
    (data,) = tmp_path.glob("*.data-*")
    data.write_bytes(data.read_bytes()[:3])
    with pytest.raises(ValueError, match=r"lenet\.ckpt is not a readable checkpoint"):
        pretrained_weights.read_tf_slim(path, "lenet_slim")


def make_model() -> keras.Model:
    """A net with unnamed layers and with some that the suite could have named."""
    images = keras.Input((8, 8, 3))
    net = keras.layers.SeparableConv2D(5, 3, depth_multiplier=2, name="Net.separable")(images)
    net = keras.layers.Conv2D(4, 3, name="Net.Branch_0.conv")(net)
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
    found = pretrained_weights.read_keras(path, "net", shapes_of(model))
    assert found.arrays.keys() == shapes_of(model).keys()
    for v in model.variables:
        np.testing.assert_array_equal(found.arrays[v.path.replace(".", "/")], v.numpy())
    assert not found.left_out


@pytest.mark.parametrize("name", ["net.keras", "net.weights.h5", "net.h5"])
@pytest.mark.parametrize("layer", ["block1_conv1", "vgg_16.conv1.conv1_1"])
def test_a_file_of_a_trained_model_gives_the_net_alone(tmp_path, name, layer):
    images, path = keras.Input((4, 4, 3)), str(tmp_path / name)
    model = keras.Model(images, keras.layers.Conv2D(2, 3, name=layer)(images))
    model.compile("adam", "mse", metrics=["mae"])
    model.train_on_batch(np.zeros((1, 4, 4, 3)), np.ones((1, 2, 2, 2)))
    save = model.save_weights if name.endswith(".weights.h5") else model.save
    save(path)
    scope = "vgg_16/conv1/conv1_1"
    shapes = {f"{scope}/kernel": (3, 3, 3, 2), f"{scope}/bias": (2,)}
    found = pretrained_weights.read_keras(path, "vgg_16", shapes)
    assert (found.arrays.keys(), found.left_out) == (shapes.keys(), ())


def test_a_nested_model_is_read_too(tmp_path):
    model, path = make_model(), str(tmp_path / "outer.weights.h5")
    keras.Sequential([keras.Input((8, 8, 3)), model]).save_weights(path)
    found = pretrained_weights.read_keras(path, "net", shapes_of(model))
    assert found.arrays.keys() == shapes_of(model).keys()


def test_a_dense_layer_gives_the_kernel_of_a_convolution(tmp_path):
    images = keras.Input((2, 2, 3))
    net = keras.layers.Dense(5, name="fc")(keras.layers.Flatten()(images))
    dense = keras.Model(images, net)
    dense.save_weights(tmp_path / "dense.weights.h5")
    shapes = {"fc/kernel": (2, 2, 3, 5), "fc/bias": (5,)}
    found = pretrained_weights.read_keras(str(tmp_path / "dense.weights.h5"), "net", shapes)
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
    found = pretrained_weights.read_keras(str(tmp_path / "net.weights.h5"), "net", shapes)
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
        pretrained_weights.read_keras(str(tmp_path / "net.weights.h5"), "lenet", shapes)


@pytest.mark.parametrize("name", ["broken.h5", "broken.keras"])
def test_a_damaged_file_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"no weights")
    with pytest.raises(ValueError, match=f"{name} is not a readable file of Keras"):
        pretrained_weights.read_keras(str(tmp_path / name), "lenet", {})


def _damage_tree(path):
    path.write_bytes(path.read_bytes().replace(b"TREE", b"tree"))


def _name_an_array(path):
    with h5py.File(path, "a") as file:
        file.move("layers/dense/vars/1", "layers/dense/vars/one")


def _replace_an_array(path):
    with h5py.File(path, "a") as file:
        del file["layers/dense/vars/1"]
        file["layers/dense/vars/1"] = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (_damage_tree, RuntimeError),
        (_name_an_array, ValueError),
        (_replace_an_array, TypeError),
    ],
)
def test_a_file_with_damaged_structure_is_named_with_the_reason_in_one_line(
    tmp_path, damage, cause
):
    path = tmp_path / "net.weights.h5"
    make_model().save_weights(path)
    damage(path)
    with pytest.raises(ValueError, match=r"net\.weights\.h5 is not a readable file") as error:
        pretrained_weights.read_keras(str(path), "net", {})
    assert isinstance(error.value.__cause__, cause) and "\n" not in str(error.value)


def test_the_layers_of_keras_applications_have_names_of_the_suite():
    names = pretrained_weights._vgg("vgg_16", ["block1_conv2", "fc1", "predictions"], [])
    assert names["block1_conv2"] == "vgg_16/conv1/conv1_2"
    assert (names["fc1"], names["predictions"]) == ("vgg_16/fc6", "vgg_16/fc8")
    names = pretrained_weights._resnet("resnet_v2_50", ["conv3_block2_1_conv"], [])
    assert names["conv3_block2_1_conv"] == "resnet_v2_50/block2/unit_2/bottleneck_v2/conv1"
    assert names["predictions"] == names["probs"] == "resnet_v2_50/logits"
    named = pretrained_weights._named_in_inception_resnet(
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
        pretrained_weights.read_keras(str(tmp_path / "vgg19.weights.h5"), "vgg_16", shapes)


CLASSES = 7
RED_FIRST, BLUE_FIRST = slice(None), slice(None, None, -1)  # of the images of Keras' net


@pytest.fixture
def twins(tmp_path):
    """Returns our net and Keras', with the weights of a file that Keras' has written."""

    def make(net, published, size):
        theirs = published(
            weights=None, input_shape=(size, size, 3), classes=CLASSES, classifier_activation=None
        )
        rng = np.random.default_rng(0)
        for v in theirs.variables:
            if not v.path.endswith("kernel"):
                v.assign(rng.uniform(0.5, 1.0, size=v.shape))
        path = str(tmp_path / "theirs.weights.h5")
        theirs.save_weights(path)
        ours = nets_factory.build_net(net, num_classes=CLASSES, image_size=size, for_training=False)
        assert [output.shape for output in ours.outputs] == [(None, CLASSES)]  # no auxiliary heads
        variables = nets_factory.named_variables(ours)
        found = pretrained_weights.read_keras(
            path, net, {name: tuple(v.shape) for name, v in variables.items()}
        )
        assert (found.arrays.keys(), found.left_out) == (variables.keys(), ())
        for name, v in variables.items():
            v.assign(found.arrays[name])
        return ours, theirs

    return make


def _images(model: keras.Model) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(2, *model.inputs[0].shape[1:])).astype(np.float32)


def _assert_equal_outputs(ours: keras.Model, theirs: keras.Model, colours=RED_FIRST) -> None:
    images = _images(theirs)
    expected = np.asarray(theirs(images[..., colours]))
    np.testing.assert_allclose(ours(images), expected, atol=1e-4 * np.abs(expected).max())


def _correlation(ours: np.ndarray, theirs: np.ndarray) -> float:
    return np.corrcoef(np.ravel(ours), np.ravel(theirs))[0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "published", "size", "colours"),
    [
        ("inception_v3", keras.applications.InceptionV3, 139, RED_FIRST),
        pytest.param(
            *("inception_resnet_v2", keras.applications.InceptionResNetV2, 139, RED_FIRST),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            *("vgg_16", keras.applications.VGG16, 224, BLUE_FIRST), marks=pytest.mark.exhaustive
        ),
    ],
)
def test_parameters_and_outputs_equal_keras(twins, net, published, size, colours):
    ours, theirs = twins(net, published, size)
    assert ours.count_params() == theirs.count_params()
    _assert_equal_outputs(ours, theirs, colours)


@pytest.mark.slow
def test_resnet_v2_equals_keras_after_the_first_pooling(twins):
    """Keras pads the first pooling with zeros, and on both sides; TF-Slim uses SAME padding."""
    ours, theirs = twins("resnet_v2_50", keras.applications.ResNet50V2, 139)
    assert ours.count_params() == theirs.count_params()
    _assert_equal_outputs(
        keras.Model(ours.get_layer("resnet_v2_50.pool1").output, ours.output),
        keras.Model(theirs.get_layer("pool1_pool").output, theirs.output),
    )
    images = _images(theirs)
    assert _correlation(ours(images), theirs(images)) > 0.999


@pytest.mark.slow
def test_resnet_v1_differs_from_keras_only_in_strides_biases_and_order_of_colours(twins):
    """Keras strides in the first 1x1 convolution of a block, TF-Slim in the last 3x3 one.

    Its convolutions also have biases, which normalization cancels, and blue is its first colour. Up
    to the first stride the outputs are equal.
    """
    ours, theirs = twins("resnet_v1_50", keras.applications.ResNet50, 139)
    convs = [x for x in ours.layers if isinstance(x, keras.layers.Conv2D) and not x.use_bias]
    assert theirs.count_params() - ours.count_params() == sum(x.filters for x in convs) == 26_560
    last = ours.get_layer("resnet_v1_50.block1.unit_2.bottleneck_v1.relu").output
    _assert_equal_outputs(
        keras.Model(ours.get_layer("resnet_v1_50.pool1").output, last),
        keras.Model(
            theirs.get_layer("pool1_pool").output, theirs.get_layer("conv2_block2_out").output
        ),
    )
    images = _images(theirs)
    assert _correlation(ours(images), theirs(images[..., BLUE_FIRST])) > 0.999
