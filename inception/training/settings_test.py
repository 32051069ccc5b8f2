"""Settings that differ from those of a checkpoint or of another worker are named."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.training import restoring, settings
from inception.training.build import build_training
from inception.training.problem import problem_of
from inception.training.sharded_state import own_settings
from slim.datasets.dataset_factory import Dataset
from terngrad.training import checkpoints

CONFIG = TrainConfig(dataset_name="mnist", net="lenet", batch_size=16, num_nodes=2, grad_bits=1)


@pytest.fixture(name="dataset")
def _dataset(tmp_path) -> Dataset:
    file = tmp_path / "train-mnist.tfrecord"
    file.write_bytes(b"12345")
    return Dataset("mnist", "train", (str(file),), (7,), tuple("0123456789"), (28, 28, 1))


def differences(dataset: Dataset | None, /, **changed) -> str:
    """Returns the settings that a run with changed flags reports."""
    other = dataclasses.replace(CONFIG, **changed)
    return settings.differences(
        settings.describe(CONFIG, dataset), settings.describe(other, dataset)
    )


@pytest.mark.parametrize(
    ("name", "value", "old"),
    [
        ("batch_size", 32, 16),
        ("seed", 2, 1),
        ("num_nodes", 4, 2),
        ("num_readers", 2, 4),
        ("input_queue_memory_factor", 1, 16),
        ("clip_factor", 2.5, 0.0),
        ("scale_by", "channel", "variable"),
        ("initial_learning_rate", 0.1, 0.01),
    ],
)
def test_a_setting_that_changes_batches_or_updates_is_named_with_both_values(
    dataset, name, value, old
):
    assert differences(dataset, **{name: value}) == f"{name} = {value} (was {old})"


def test_all_that_differ_stand_in_one_line(dataset):
    assert (
        differences(dataset, seed=2, batch_size=32) == "batch_size = 32 (was 16), seed = 2 (was 1)"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"save_iter": 1, "keep_checkpoints": 0, "save_summaries_secs": 0, "train_dir": "/other"},
        {"data_dir": "/a/copy", "num_preprocess_threads": 1, "use_encoding": False},
        {"max_steps": 10},
        {"learning_rate_power": 2.0},  # of a decay that is not used
    ],
)
def test_a_setting_that_changes_no_bit_is_not_named(dataset, changed):
    assert differences(dataset, **changed) == ""


def test_the_end_counts_where_the_learning_rate_falls_towards_it(dataset):
    config = dataclasses.replace(CONFIG, learning_rate_decay_type="polynomial", max_steps=10)
    longer = dataclasses.replace(config, max_steps=20)
    found = settings.differences(
        settings.describe(config, dataset), settings.describe(longer, dataset)
    )
    assert found == "max_steps = 20 (was 10)"


FEEDBACK = {"codec": "ternary-feedback", "grad_bits": 32, "clip_factor": 0.0}


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        ({"grad_bits": 32}, FEEDBACK, "codec = ternary-feedback (was float)"),
        (FEEDBACK, {"grad_bits": 32}, "codec = float (was ternary-feedback)"),
        (
            {"grad_bits": 3},
            {"codec": "mine:Codec", "grad_bits": 32},
            "codec = mine:Codec (was 7-level), grad_bits = 32 (was 3)",
        ),
        ({"grad_bits": 32}, {"grad_bits": 3}, "grad_bits = 3 (was 32)"),
    ],
)
def test_a_codec_that_only_one_of_two_runs_names_is_named(before, now, named):
    noted = (
        settings.describe(dataclasses.replace(CONFIG, **flags), None) for flags in (before, now)
    )
    assert settings.differences(*noted) == named


@pytest.mark.parametrize(("before", "now"), [(True, False), (False, True)])
def test_a_run_whose_workers_begin_or_cease_to_wait_for_each_other_is_named(before, now):
    hosts = {"worker_hosts": ("a:1",), "ps_hosts": ("p:1",), "cross_replica_sync": False}
    own = {True: {}, False: own_settings(ClusterConfig(**hosts))}
    noted = (settings.describe(CONFIG, None, own=own[sync]) for sync in (before, now))
    assert settings.differences(*noted) == f"cross_replica_sync = {now} (was {before})"


@pytest.mark.parametrize(("before", "now"), [("float", "ternary"), ("ternary", "float")])
def test_another_codec_of_asynchronous_pulls_is_named(before, now):
    hosts = {"worker_hosts": ("a:1",), "ps_hosts": ("p:1",), "cross_replica_sync": False}
    own = lambda name: own_settings(ClusterConfig(**hosts, pull_codec=name))
    noted = (settings.describe(CONFIG, None, own=own(name)) for name in (before, now))
    assert settings.differences(*noted) == f"pull_codec = {now} (was {before})"


def test_other_records_are_named_wherever_they_are(dataset):
    before = settings.describe(CONFIG, dataset)
    with open(dataset.files[0], "a") as file:
        file.write("6")
    assert settings.differences(before, settings.describe(CONFIG, dataset)) == (
        "data_dir = 7 images, 6 bytes, 1 files (was 7 images, 5 bytes, 1 files)"
    )
    assert "data_dir = synthetic images" in settings.differences(
        before, settings.describe(CONFIG, None)
    )


def test_a_checkpoint_that_notes_less_is_compared_in_what_it_notes(dataset):
    now = settings.describe(CONFIG, dataset)
    assert settings.differences("", now) == ""
    assert settings.differences('{"seed": 5}', now) == "seed = 1 (was 5)"


@pytest.mark.parametrize("own", [{"image_size": 28}, {"preprocessing_name": "lenet"}])
def test_what_the_net_brings_is_no_change_when_it_is_given(dataset, own):
    assert differences(dataset, **own) == ""
    (name,) = own
    earlier = json.loads(settings.describe(CONFIG, dataset)) | {name: getattr(CONFIG, name)}
    assert settings.differences(json.dumps(earlier), settings.describe(CONFIG, dataset)) == ""
    given = dataclasses.replace(CONFIG, **own)
    assert settings.configuration(given, 2) == settings.configuration(CONFIG, 2)


@pytest.mark.parametrize(
    ("name", "value", "old"), [("image_size", 20, 28), ("preprocessing_name", "unit", "lenet")]
)
def test_another_input_is_named_with_what_the_net_brought(dataset, name, value, old):
    assert differences(dataset, **{name: value}) == f"{name} = {value} (was {old})"


def test_an_alexnet_whose_preprocessing_was_left_open_had_that_of_vgg(dataset):
    config = dataclasses.replace(CONFIG, net="alexnet", dataset_name="images")
    now = settings.describe(config, dataset)
    earlier = json.dumps(json.loads(now) | {"preprocessing_name": None})
    assert settings.differences(earlier, now) == "preprocessing_name = alexnet (was vgg)"


def test_workers_that_share_records_must_have_the_same(dataset):
    configuration = settings.data_configuration(dataset, split_data=True)
    assert configuration["split_data"] == "True"
    assert configuration["data_dir"] == "7 images, 5 bytes, 1 files"
    with open(dataset.files[0], "r+b") as file:
        file.write(b"5")  # other records of the same number and size
    changed = settings.data_configuration(dataset, split_data=True)
    (name,) = (name for name in configuration if configuration[name] != changed[name])
    assert name == "data_dir (start and end of its files)"


def test_workers_that_share_synthetic_images_have_nothing_to_compare_them_by():
    configuration = {"split_data": "True", "data_dir": "synthetic images"}
    assert settings.data_configuration(None, split_data=True) == configuration


def test_workers_with_their_own_records_must_only_all_have_their_own(dataset):
    assert settings.data_configuration(dataset, split_data=False) == {"split_data": "False"}


@pytest.mark.parametrize(("name", "value"), [("use_encoding", False), ("bucket_elements", 100)])
def test_workers_must_agree_on_what_changes_only_the_wire(name, value):
    configuration, others = (
        settings.configuration(config, 2)
        for config in (CONFIG, dataclasses.replace(CONFIG, **{name: value}))
    )
    assert {key for key in configuration if configuration[key] != others[key]} == {name}


def test_a_restart_that_does_not_fit_names_the_size_of_the_images_before(tmp_path):
    mlp = TrainConfig(dataset_name="mnist", net="mlp", benchmark_mode=True, train_dir=str(tmp_path))
    build = lambda config: build_training(config, problem_of(config), 10.0, ["/CPU:0"])
    checkpoints.save(str(tmp_path), build(mlp).state, 1, settings=settings.describe(mlp, None))
    smaller = dataclasses.replace(mlp, image_size=20)
    text = r"It was trained with images of 28 pixels, --image_size is 20\."
    with pytest.raises(ValueError, match=rf"model\.ckpt-1: .* has shape .* {text}"):
        restoring.restore_chief(smaller, build(smaller), "")


@pytest.mark.parametrize(("before", "now"), [(0.9999, 0.0), (0.0, 0.9999)])
def test_averages_neither_begin_nor_end_where_a_training_goes_on(tmp_path, before, now):
    config = TrainConfig(
        dataset_name="mnist",
        net="mlp",
        benchmark_mode=True,
        train_dir=str(tmp_path),
        moving_average_decay=before,
    )
    build = lambda config: build_training(config, problem_of(config), 10.0, ["/CPU:0"])
    path = checkpoints.save(
        str(tmp_path), build(config).state, 1, settings=settings.describe(config, None)
    )
    other = dataclasses.replace(config, moving_average_decay=now)
    why = f"{path} was trained with --moving_average_decay={before}; to begin or end averages, name"
    with pytest.raises(ValueError, match=rf"^flag --moving_average_decay={now}: {why} a new "):
        restoring.restore_chief(other, build(other), "")


@pytest.mark.parametrize("max_steps", [50, 200])
def test_a_folder_that_tensorflow_1_trained_in_is_none_to_go_on_in(tmp_path, max_steps):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("global_step", initializer=np.int64(100))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), global_step=100)
    config = dataclasses.replace(CONFIG, train_dir=str(tmp_path), max_steps=max_steps)
    why = r"holds model\.ckpt-100, which another program wrote; to start from its weights, name a"
    with pytest.raises(ValueError, match=rf"^flag --train_dir={tmp_path}: {why} new "):
        _ = restoring.is_finished(config) or restoring.restore_chief(config, None, "")
