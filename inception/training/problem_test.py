"""A data set and a net make a problem, or the flag that does not fit is named."""

import dataclasses

import pytest

from inception.flags import configs
from inception.training.build import build_training
from inception.training.problem import Problem, check_net, net_settings, problem_of
from slim.datasets import dataset_factory, mnist


def problem_for(dataset_name: str, **fields) -> Problem:
    """The problem of a training config."""
    return problem_of(configs.TrainConfig(dataset_name=dataset_name, **fields))


def test_a_net_brings_its_image_size_and_preprocessing():
    assert problem_for("mnist", net="lenet") == Problem(10, 28, 1, "lenet")
    assert problem_for("cifar10", net="cifar10_alexnet") == Problem(10, 24, 3, "cifarnet")


def test_flags_replace_them():
    found = problem_for("cifar10", net="cifarnet", image_size=24, preprocessing_name="unit")
    assert (found.image_size, found.preprocessing) == (24, "unit")


def test_a_net_provides_dropout_and_label_smoothing_that_the_config_leaves_open():
    config = configs.TrainConfig(dataset_name="cifar10", net="inception_v3")
    assert net_settings(config) == (0.5, 0.1)  # --dropout_keep_prob has a default
    config = dataclasses.replace(config, dropout_keep_prob=None, label_smoothing=0.0)
    assert net_settings(config) == (0.8, 0.0)
    assert net_settings(dataclasses.replace(config, net="alexnet")) == (0.5, 0.0)


def test_a_net_for_other_images_is_named_with_those_that_fit():
    with pytest.raises(
        ValueError, match=r"^flag --net=cifarnet: takes 3-channel images, those of mnist have 1; "
    ) as error_info:
        problem_for("mnist", net="cifarnet")
    assert "lenet" in str(error_info.value)


def test_an_unknown_net_or_data_set_is_named_with_what_is_allowed():
    with pytest.raises(ValueError, match=r"resnet.*lenet"):
        problem_for("mnist", net="resnet")
    with pytest.raises(ValueError, match=r"svhn.*mnist"):
        problem_for("svhn", net="lenet")


def test_the_offset_is_taken_from_the_number_of_classes():
    assert problem_for("mnist", net="lenet", labels_offset=1).num_classes == 9


def test_at_least_two_classes_are_left():
    with pytest.raises(ValueError, match=r"^flag --labels_offset=9: leaves 1 classes"):
        problem_for("mnist", net="lenet", labels_offset=9)


def test_classes_are_counted_in_labels_txt_where_only_that_names_them(tmp_path):
    (tmp_path / "labels.txt").write_text("1:rose\n2:tulip\n")
    found = problem_for("images", net="cifarnet", data_dir=str(tmp_path))
    assert (found.num_classes, found.channels) == (3, 3)
    assert problem_for("imagenet", net="cifarnet", data_dir="/nowhere").num_classes == 1001


@pytest.mark.parametrize("config_class", [configs.TrainConfig, configs.EvalConfig])
def test_a_folder_without_labels_txt_is_named(tmp_path, config_class):
    for folder, why in ((tmp_path, "labels.txt is missing"), (tmp_path / "none", "is no folder")):
        config = config_class(dataset_name="flowers", net="cifarnet", data_dir=str(folder))
        with pytest.raises(ValueError, match=f"^flag --data_dir={folder}: .*{why}"):
            problem_of(config)


def test_synthetic_images_have_as_many_classes_as_imagenet_where_nothing_names_them():
    options = {"net": "cifarnet", "data_dir": "/nowhere", "benchmark_mode": True}
    assert problem_for("images", **options).num_classes == 1001
    assert problem_for("cifar10", **options).num_classes == 10


def test_scopes_of_no_variable_name_their_flag(tmp_path):
    fields = {"dataset_name": "mnist", "net": "lenet", "trainable_scopes": ("fc9",)}
    config = configs.TrainConfig(**fields, train_dir=str(tmp_path), benchmark_mode=True)
    why = r"--trainable_scopes=fc9: no trainable variable begins with 'fc9'; .*fc"
    with pytest.raises(ValueError, match=why):
        build_training(config, problem_of(config), 1.0, ["/CPU:0"])


def test_a_data_set_that_names_no_net_wants_one_of_those_that_fit(monkeypatch):
    info = dataclasses.replace(mnist.INFO, name="own", net="")
    monkeypatch.setitem(dataset_factory.DATASETS, "own", info)
    config = configs.TrainConfig(dataset_name="own", net="")
    with pytest.raises(ValueError) as error_info:
        check_net(config)
    assert str(error_info.value) == (
        "flag --net=: must be given: data set own names none; allowed: lenet, lenet_slim, mlp"
    )
