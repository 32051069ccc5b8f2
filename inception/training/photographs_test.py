"""Training and evaluation on JPEGs that differ in size, with their classes in labels.txt."""

import re

import numpy as np
import pytest
import tensorflow as tf

from inception import programs
from inception.flags.configs import EvalConfig, TrainConfig
from slim.datasets import records
from terngrad.training import checkpoints, runtime

_IMAGES = {"train-00000-of-00002": 9, "train-00001-of-00002": 7, "validation-00000-of-00001": 6}


@pytest.fixture(scope="module", name="data_dir")
def _data_dir(tmp_path_factory):
    """Records of random pictures of two classes, labelled 1 and 2, of many sizes."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for name, count in _IMAGES.items():
        with records.record_writer(str(folder / name)) as writer:
            for number in range(count):
                shape = (20 + 3 * number, 50 - 3 * number, 3)
                jpeg = tf.io.encode_jpeg(rng.integers(0, 256, shape, np.uint8)).numpy()
                record = records.ImageRecord(jpeg, "jpeg", *shape, label=1 + number % 2)
                writer.write(record.serialize())
    (folder / "labels.txt").write_text("1:cat\n2:dog\n")
    return str(folder)


@pytest.fixture(name="train")
def _train(data_dir, monkeypatch):
    """Trains in this process, whose settings conftest.py has made; returns the checkpoint."""
    monkeypatch.setattr(runtime, "configure", lambda **_: None)
    monkeypatch.setattr(runtime, "towers", lambda n, on_cpu: [f"/CPU:{i}" for i in range(n)])

    def run(train_dir, max_steps, preprocessing):
        programs.run_training(
            TrainConfig(
                dataset_name="images",
                net="cifarnet",
                image_size=16,
                preprocessing_name=preprocessing,
                data_dir=data_dir,
                train_dir=str(train_dir),
                batch_size=4,
                max_steps=max_steps,
                grad_bits=1,
                input_queue_memory_factor=1,
                save_summaries_secs=0,
            )
        )
        reader = tf.train.load_checkpoint(checkpoints.latest_checkpoint(str(train_dir)))
        return {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map() if "state" in n}

    return run


@pytest.mark.slow
def test_pictures_of_all_sizes_train_and_resume_in_mid_epoch_bit_for_bit(train, tmp_path):
    undisturbed = train(tmp_path / "undisturbed", 6, "inception")
    train(tmp_path / "resumed", 3, "inception")  # an epoch has 4 steps
    resumed = train(tmp_path / "resumed", 6, "inception")
    assert undisturbed.keys() == resumed.keys()
    for name, value in undisturbed.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


@pytest.mark.slow
def test_all_pictures_of_the_split_are_evaluated(train, tmp_path, data_dir, capsys):
    train(tmp_path / "train", 1, "vgg")
    programs.run_evaluation(
        EvalConfig(
            dataset_name="images",
            subset="validation",
            net="cifarnet",
            image_size=16,
            preprocessing_name="vgg",
            data_dir=data_dir,
            checkpoint_dir=str(tmp_path / "train"),
            eval_dir=str(tmp_path / "eval"),
            batch_size=4,
            run_once=True,
        )
    )
    told = capsys.readouterr().out
    assert "starting evaluation on (validation)." in told
    # Two classes and the background: the right one is always among the first five.
    assert re.search(r"precision @ 1 = \d\.\d{4} recall @ 5 = 1.0000 \[6 examples\]", told)
