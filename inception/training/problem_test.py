import pytest

from inception.flags import configs
from inception.training import problem


def resolve(dataset_name: str, **fields) -> problem.Problem:
    """The problem of a training config."""
    return problem.resolve(configs.TrainConfig(dataset_name=dataset_name, **fields))


def test_a_net_brings_its_image_size_and_preprocessing():
    assert resolve("mnist", net="lenet") == problem.Problem(10, 28, 1, "lenet")
    assert resolve("cifar10", net="cifar10_alexnet") == problem.Problem(10, 24, 3, "cifarnet")


def test_flags_replace_them():
    found = resolve("cifar10", net="cifarnet", image_size=24, preprocessing_name="unit")
    assert (found.image_size, found.preprocessing) == (24, "unit")


def test_a_net_for_other_images_is_named_with_those_that_fit():
    with pytest.raises(
        ValueError, match=r"^flag --net=cifarnet: takes 3-channel images, those of mnist have 1; "
    ) as error_info:
        resolve("mnist", net="cifarnet")
    assert "lenet" in str(error_info.value)


def test_an_unknown_net_or_data_set_is_named_with_what_is_allowed():
    with pytest.raises(ValueError, match=r"resnet.*lenet"):
        resolve("mnist", net="resnet")
    with pytest.raises(ValueError, match=r"svhn.*mnist"):
        resolve("svhn", net="lenet")


def test_the_offset_is_taken_from_the_number_of_classes():
    assert resolve("mnist", net="lenet", labels_offset=1).num_classes == 9


def test_at_least_two_classes_are_left():
    with pytest.raises(ValueError, match=r"^flag --labels_offset=9: leaves 1 classes"):
        resolve("mnist", net="lenet", labels_offset=9)
