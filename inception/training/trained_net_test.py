"""A portable model computes what the net does, with layers of Keras only."""

import keras
import numpy as np
import pytest

from inception.training import trained_net
from slim.nets import nets_factory


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
