"""A training starts from the weights of any known file, and every variable is accounted for."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from inception.flags.configs import TrainConfig
from inception.training import pretrained
from slim.nets import nets_factory
from terngrad.training import checkpoints

NET = "cifarnet"
LAST = {"logits/kernel", "logits/bias"}
WAY_OUT = "with --checkpoint_exclude_scopes=logits the last layer starts afresh"


def variables(num_classes: int = 10, seed: int = 1) -> dict[str, tf.Variable]:
    """Returns the variables of a small net, by name."""
    model = nets_factory.build_net(NET, num_classes=num_classes, seed=seed)
    return nets_factory.named_variables(model)


def config(path, **changes) -> TrainConfig:
    return TrainConfig(
        dataset_name="cifar10", net=NET, pretrained_model_checkpoint_path=str(path), **changes
    )


def write_suite(folder: Path, stored: dict[str, tf.Variable]) -> Path:
    state = {"step": tf.Variable(7, dtype=tf.int64)}
    state |= {f"variables/{name}": v for name, v in stored.items()}
    state |= {f"slots/momentum/{name}": v for name, v in stored.items()}
    return Path(checkpoints.save(str(folder), state, 7))


def write_tf_slim(folder: Path, stored: dict[str, tf.Variable]) -> Path:
    """Writes a checkpoint with the names that TF-Slim published."""
    last_parts = {"kernel": "weights", "bias": "biases"}
    values = {name: v.numpy() for name, v in stored.items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("global_step", initializer=np.int64(100))
        for name, value in values.items():
            scope, _, last = name.rpartition("/")
            place = f"CifarNet/{scope}/{last_parts[last]}"
            tf.compat.v1.get_variable(place, initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        path = tf.compat.v1.train.Saver().save(session, str(folder / "cifarnet.ckpt"))
    return Path(path)


def write_keras(folder: Path, stored: dict[str, tf.Variable]) -> Path:
    model = nets_factory.build_net(NET, num_classes=stored["logits/bias"].shape[0])
    for v in model.variables:
        v.assign(stored[nets_factory.variable_name(v)])
    model.save_weights(folder / "cifarnet.weights.h5")
    return folder / "cifarnet.weights.h5"


WRITERS = [write_suite, write_tf_slim, write_keras]


@pytest.mark.parametrize("write", WRITERS)
def test_all_weights_are_loaded_and_reported(tmp_path, capsys, write):
    there, here = variables(seed=1), variables(seed=2)
    path = write(tmp_path, there)
    pretrained.load(config(path), here)
    for name, v in here.items():
        np.testing.assert_array_equal(v, there[name])
    printed = capsys.readouterr().out
    assert f"Succesfully loaded model from {path} to start with.\n" in printed
    assert f"{len(here)} variables come from " in printed
    assert ("left out: global_step." in printed) == (write is write_tf_slim)


@pytest.mark.parametrize("write", WRITERS)
def test_fine_tuning_leaves_the_last_layer_fresh_and_takes_any_number_of_classes(
    tmp_path, capsys, write
):
    there, here = variables(seed=1), variables(num_classes=5, seed=2)
    fresh = {name: here[name].numpy() for name in LAST}
    pretrained.load(config(write(tmp_path, there), fine_tune=True), here)
    for name, v in here.items():
        np.testing.assert_array_equal(v, fresh[name] if name in LAST else there[name])
    assert "2 start afresh: logits/kernel, logits/bias" in capsys.readouterr().out


def test_the_newest_checkpoint_of_a_folder_is_taken(tmp_path):
    there, here = variables(seed=1), variables(seed=2)
    write_suite(tmp_path, there)
    pretrained.load(config(tmp_path), here)
    np.testing.assert_array_equal(here["fc3/kernel"], there["fc3/kernel"])


@pytest.mark.parametrize("write", [write_suite, write_tf_slim])
def test_a_folder_may_have_the_letters_of_a_pattern_in_its_name(tmp_path, write):
    there, here = variables(seed=1), variables(seed=2)
    folder = tmp_path / r"a [b] \*?"
    folder.mkdir()
    write(folder, there)
    pretrained.load(config(folder), here)
    np.testing.assert_array_equal(here["fc3/kernel"], there["fc3/kernel"])


def test_excluded_scopes_start_afresh(tmp_path):
    there, here = variables(seed=1), variables(seed=2)
    before = here["fc4/kernel"].numpy()
    path = write_suite(tmp_path, there)
    pretrained.load(config(path, checkpoint_exclude_scopes=("fc4",)), here)
    np.testing.assert_array_equal(here["fc4/kernel"], before)
    np.testing.assert_array_equal(here["fc3/kernel"], there["fc3/kernel"])


@pytest.mark.parametrize("write", WRITERS)
def test_law_10_another_number_of_classes_is_named_with_the_way_out(tmp_path, write):
    path = write(tmp_path, variables())
    there = re.escape("logits/kernel is 192x10 there and 192x5 here; logits/bias is 10 there")
    with pytest.raises(ValueError, match=f"does not fit cifarnet: {there}.*{WAY_OUT}"):
        pretrained.load(config(path), variables(num_classes=5))


def test_law_10_missing_variables_are_named_or_start_afresh(tmp_path, capsys):
    there, here = variables(seed=1), variables(seed=2)
    before = here.pop("fc3/kernel"), here["fc4/kernel"].numpy()
    del there["fc4/kernel"], there["logits/kernel"]
    path = write_suite(tmp_path, there)
    with pytest.raises(ValueError, match="it lacks fc4/kernel, logits/kernel") as refusal:
        pretrained.load(config(path), here)
    assert "exclude_scopes" not in str(refusal.value)
    pretrained.load(config(path, ignore_missing_vars=True), here)
    np.testing.assert_array_equal(here["fc4/kernel"], before[1])
    printed = capsys.readouterr().out
    assert "2 start afresh: fc4/kernel, logits/kernel" in printed
    assert "left out: fc3/kernel" in printed


@pytest.mark.parametrize("write", [write_suite, write_tf_slim])
def test_law_10_a_file_that_holds_nothing_of_the_net_is_named(tmp_path, write):
    path = write(tmp_path, variables())
    with pytest.raises(ValueError, match=r"\) holds no variable of cifarnet\.$"):
        other = {f"other/{name}": v for name, v in variables().items()}
        pretrained.load(config(path, ignore_missing_vars=True), other)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "the folder holds no checkpoint"),
        ("absent", "there is no such checkpoint, folder or weight file"),
        ("absent.h5", "there is no such checkpoint, folder or weight file"),
    ],
)
def test_law_10_a_path_without_weights_is_named(tmp_path, name, why):
    with pytest.raises(ValueError, match=f"flag --pretrained_model_checkpoint_path=.*: {why}"):
        pretrained.load(config(tmp_path / name), variables())


def write_noted(folder: Path, stored: dict[str, tf.Variable], net: str, classes: str) -> Path:
    """Writes a checkpoint that notes its net, with labels.txt beside it."""
    state = {"step": tf.Variable(7, dtype=tf.int64)}
    state |= {f"variables/{name}": v for name, v in stored.items()}
    path = checkpoints.save(str(folder), state, 7, settings=json.dumps({"net": net}))
    (folder / "labels.txt").write_text(classes)
    return Path(path)


def test_law_10_a_checkpoint_of_another_net_with_the_same_names_is_named(tmp_path):
    path = write_noted(tmp_path, variables(), "cifar10_alexnet", "")
    (tmp_path / "labels.txt").unlink()
    with pytest.raises(ValueError, match="holds a net cifar10_alexnet, --net is cifarnet"):
        pretrained.load(config(path), variables())
    pretrained.load(config(path, ignore_missing_vars=True), variables())


def test_law_10_other_classes_of_the_same_number_are_named(tmp_path):
    classes = "".join(f"{label}:{name}\n" for label, name in enumerate("abcdefghij"))
    path = write_noted(tmp_path, variables(), NET, classes)
    with pytest.raises(ValueError, match=rf"label 0 is 'a'.*'airplane'; {WAY_OUT}"):
        pretrained.load(config(path), variables())
    pretrained.load(config(path, fine_tune=True), variables())
    pretrained.load(config(path, checkpoint_exclude_scopes=("logits",)), variables())


def test_scopes_may_be_tf_slims_and_must_hold_variables(tmp_path, capsys):
    path = write_tf_slim(tmp_path, variables())
    pretrained.load(config(path, checkpoint_exclude_scopes=("CifarNet/logits",)), variables())
    assert "2 start afresh: logits/kernel, logits/bias" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"scopes=fc33: no variable begins with 'fc33'; .* fc3"):
        pretrained.load(config(path, checkpoint_exclude_scopes=("fc33",)), variables())


def test_an_auxiliary_head_starts_afresh_where_the_file_has_nothing_of_it(tmp_path, capsys):
    names = ("Conv2d_1a_3x3/kernel", "Logits/Conv2d_1c_1x1/bias", "AuxLogits/Conv2d_1b_1x1/kernel")
    here = {f"InceptionV3/{name}": tf.Variable([1.0]) for name in names}
    there = {name: v for name, v in here.items() if "Aux" not in name}
    path = str(write_suite(tmp_path, there))
    chosen = config(path, checkpoint_exclude_scopes=("InceptionV3/Logits",))
    pretrained.load(dataclasses.replace(chosen, net="inception_v3"), here)
    printed = capsys.readouterr().out
    assert f"2 start afresh: InceptionV3/{names[1]}, InceptionV3/{names[2]}" in printed
