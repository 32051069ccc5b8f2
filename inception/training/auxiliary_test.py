"""A net with scopes, batch normalization and an auxiliary head, from its layout to evaluation."""

import pytest

from inception.flags.configs import TrainConfig
from inception.training import restoring
from inception.training.build import Training, build_training
from inception.training.problem import problem_of
from slim.nets import catalog, nets_factory
from slim.nets.catalog import NetSpec
from slim.nets.inception_layers import STYLE
from slim.nets.net_builder import Scope
from terngrad.training import checkpoints

HEADS = ("Twin/Logits/Conv2d_1c_1x1", "Twin/AuxLogits/Conv2d_2b_1x1")


def _twin(images, num_classes, add):
    scope = Scope(add, "Twin", STYLE)
    net = scope.conv(images, "Conv2d_1a_3x3", 4, 3, strides=2)
    main, auxiliary = (scope / name for name in ("Logits", "AuxLogits"))
    features = scope.global_pool(net, "pool")
    return [
        main.logits(features, "Conv2d_1c_1x1", num_classes),
        auxiliary.logits(features, "Conv2d_2b_1x1", num_classes),
    ]


@pytest.fixture(autouse=True)
def twin(monkeypatch):
    """A net of the factory while a test runs."""
    spec = NetSpec(
        _twin, 8, 3, "cifarnet", logits_layers=HEADS, auxiliary_weights=(0.4,), label_smoothing=0.1
    )
    monkeypatch.setitem(catalog.NETS, "twin", spec)


def build(**changes) -> tuple[TrainConfig, Training]:
    """Builds a training of the net."""
    settings = {"dataset_name": "cifar10", "net": "twin", "batch_size": 4, "benchmark_mode": True}
    config = TrainConfig(**(settings | changes))
    return config, build_training(config, problem_of(config), 10.0, ["/CPU:0"])


@pytest.mark.parametrize(("quantized", "layers"), [(False, HEADS), (True, ())])
def test_all_logits_layers_stay_float_unless_they_are_to_be_coded(quantized, layers):
    _, training = build(grad_bits=1, quantize_logits=quantized)
    assert training.layout.policy.float_layers == layers
    assert "Twin/Conv2d_1a_3x3/kernel" in training.classifier.names
    assert "variables/Twin/Conv2d_1a_3x3/BatchNorm/moving_mean" in training.state


def test_fine_tuning_restores_all_but_the_logits_layers(tmp_path):
    _, trained = build(seed=5)
    path = checkpoints.save(str(tmp_path / "trained"), trained.state, 1)
    config, fresh = build(
        train_dir=str(tmp_path / "fine"), pretrained_model_checkpoint_path=path, fine_tune=True
    )
    _, untouched = build()
    lock, _ = restoring.restore_chief(config, fresh, "")
    lock.close()
    for name, variable in fresh.state.items():
        if name.endswith("kernel") and name.startswith("variables/"):
            expected = untouched if name.split("/", 1)[1].startswith(HEADS) else trained
            assert (variable.numpy() == expected.state[name].numpy()).all(), name


def test_a_net_without_the_auxiliary_head_reads_the_checkpoint(tmp_path):
    _, trained = build(seed=5)
    path = checkpoints.save(str(tmp_path), trained.state, 1)
    model = nets_factory.build_net("twin", num_classes=10, for_training=False)
    variables = nets_factory.named_variables(model)
    checkpoints.restore_weights(path, variables, averages=True)
    for name, variable in variables.items():
        assert (variable.numpy() == trained.state[f"variables/{name}"].numpy()).all(), name
