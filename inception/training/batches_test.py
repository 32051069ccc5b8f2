"""Batches of a training and of an evaluation: which images, which labels, and which again."""

import dataclasses
import functools
import re
import types

import numpy as np
import pytest
import tensorflow as tf

from inception.flags.configs import EvalConfig, TrainConfig
from inception.training import batches, preparation
from inception.training.batches import LastBatch
from inception.training.problem import problem_of
from slim.datasets import dataset_factory, records
from slim.datasets.dataset_factory import Dataset
from slim.testing import write_mnist_records
from terngrad.library.group import Group
from terngrad.training.classifier import Losses
from terngrad.training.reduction import Aggregate
from terngrad.training.runner import Runner
from terngrad.training.step import StepResult

LABELS = np.array([1, 4, 9, 2, 5, 1, 1])


@pytest.fixture(scope="module", name="dataset")
def _dataset(tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("data")
    write_mnist_records(folder, "train", np.zeros((len(LABELS), 28, 28, 1), np.uint8), LABELS)
    return dataset_factory.get_dataset("mnist", "train", str(folder))


def labels_of(config: TrainConfig | EvalConfig, dataset: Dataset, count: int) -> list[list[int]]:
    """The labels of the first `count` batches."""
    problem = problem_of(config)
    if isinstance(config, TrainConfig):
        made = batches.training_batches(config, problem, dataset, 0)
    else:
        made = batches.evaluation_batches(config, problem, dataset)
    with batches.naming_bad_records(problem, dataset):
        return [labels.numpy().tolist() for _, labels in made.take(count)]


def test_workers_that_hold_the_same_records_do_not_train_on_the_same_batches(dataset):
    config = TrainConfig(dataset_name="mnist", net="mlp", batch_size=len(LABELS))
    problem = problem_of(config)

    def orders(rank):
        own = types.SimpleNamespace(split_data=False)
        parts = {"config": config, "problem": problem, "dataset": dataset, "cluster": own}
        made = preparation.worker_batches(types.SimpleNamespace(**parts, group=Group(rank, 2)), 0)
        return [labels.numpy().tolist() for _, labels in made.take(3)]

    for mine, others in zip(orders(0), orders(1), strict=True):
        assert mine != others and sorted(mine) == sorted(others) == sorted(LABELS)


@pytest.mark.parametrize(
    ("num_examples", "expected"),
    [(-1, [[1, 4, 9], [2, 5, 1], [1]]), (50, [[1, 4, 9], [2, 5, 1], [1]]), (4, [[1, 4, 9], [2]])],
)
def test_evaluation_takes_as_many_examples_as_asked_for_or_all(dataset, num_examples, expected):
    config = EvalConfig(dataset_name="mnist", net="mlp", batch_size=3, num_examples=num_examples)
    assert labels_of(config, dataset, 9) == expected
    assert batches.num_evaluated(config, dataset) == sum(map(len, expected))


def test_the_offset_is_taken_from_the_labels(dataset):
    config = EvalConfig(dataset_name="mnist", net="mlp", batch_size=3, labels_offset=1)
    assert labels_of(config, dataset, 1) == [[0, 3, 8]]


@pytest.mark.parametrize("config_class", [EvalConfig, TrainConfig])
def test_an_offset_above_a_label_is_named_with_the_record(dataset, config_class):
    config = config_class(dataset_name="mnist", net="mlp", batch_size=7, labels_offset=2)
    where = re.escape(f"{dataset.files[0]}: record 0 at byte 0 has label 1;")
    with pytest.raises(ValueError, match=f"^{where} with labels_offset 2 it must be 2 to 9$"):
        labels_of(config, dataset, 1)


@pytest.mark.parametrize("label", [-1, 10, 2**31, 2**32 + 1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("config_class", [EvalConfig, TrainConfig])
def test_a_stored_label_is_checked_as_it_is_stored(tmp_path, label, config_class):
    path = str(tmp_path / "train-mnist.tfrecord")
    with records.record_writer(path) as writer:
        for stored in (1, label):
            record = records.ImageRecord(bytes(28 * 28), "RAW", 28, 28, 1, stored)
            writer.write(record.serialize())
    found = dataset_factory.get_dataset("mnist", "train", str(tmp_path))
    config = config_class(dataset_name="mnist", net="mlp", batch_size=2, data_dir=str(tmp_path))
    message = f"record 1 at byte .* has label {label}; with labels_offset 0 it must be 0 to 9$"
    with pytest.raises(ValueError, match=message):
        labels_of(config, found, 1)


def _pictures(folder, size):
    """Records of five pictures, of sizes around `size`."""
    height, width = size
    with records.record_writer(str(folder / "train-00000-of-00001")) as writer:
        for more in range(-2, 3):
            shape = height + more, width + more, 3
            pixels = bytes(shape[0] * shape[1] * shape[2])
            writer.write(records.ImageRecord(pixels, "raw", *shape, 1).serialize())
    (folder / "labels.txt").write_text("1:rose\n2:tulip\n")
    return dataset_factory.get_dataset("images", "train", str(folder))


@pytest.mark.parametrize("config_class", [EvalConfig, TrainConfig])
def test_a_crop_of_less_than_a_quarter_of_the_area_is_warned_of(tmp_path, caplog, config_class):
    options = {"dataset_name": "images", "batch_size": 2, "data_dir": str(tmp_path)}
    config = config_class(net="cifarnet", **options)
    labels_of(config, _pictures(tmp_path, (128, 96)), 1)
    assert caplog.messages == [
        "images: preprocessing cifarnet cuts 32 x 32 pixels out of images of 128 x 96, "
        "8.3 % of their area; to see all of them, convert them by inception.data.build_image_data "
        "with --raw_pixel=True --resize_dimen=32"
    ]
    caplog.clear()
    labels_of(config, _pictures(tmp_path, (64, 64)), 1)  # a quarter
    config = config_class(net="inception_v1", image_size=32, **options)
    labels_of(config, _pictures(tmp_path, (128, 96)), 1)  # it resizes
    assert not caplog.messages


def test_a_crop_of_images_of_one_size_is_warned_of(dataset, caplog):
    labels_of(EvalConfig(dataset_name="mnist", net="lenet", image_size=12), dataset, 1)
    assert caplog.messages == [
        "mnist: preprocessing lenet cuts 12 x 12 pixels out of images of 28 x 28, "
        "18 % of their area; to see all of them, give a larger image size"
    ]


def test_synthetic_batches_need_no_records():
    config = TrainConfig(dataset_name="mnist", net="mlp", batch_size=4)
    made = batches.training_batches(config, problem_of(config), None, 0)
    images, labels = next(iter(made))
    assert (images.shape, labels.shape) == ((4, 28, 28, 1), (4,))


def test_a_worker_draws_its_own_synthetic_images_only():
    config = TrainConfig(dataset_name="mnist", net="mlp", batch_size=4)
    workers = 1 << 40  # whose images fit nowhere
    made = batches.training_batches(config, problem_of(config), None, 0, workers - 1, workers)
    images, labels = next(iter(made))
    assert (images.shape, labels.shape) == ((4, 28, 28, 1), (4,))


@pytest.mark.parametrize("is_synthetic", [True, False])
def test_no_batches_are_tuned_so_that_a_step_is_made_anew_at_once(dataset, is_synthetic):
    config = TrainConfig(dataset_name="mnist", net="mlp", batch_size=2, labels_offset=1)
    given = None if is_synthetic else dataset
    made = batches.training_batches(config, problem_of(config), given, 0)
    assert made.options().autotune.enabled is False  # see `slim.input_pipeline.without_tuning`


class Training:
    """Steps that only note their batches, and excluded ones, without batches; one may fail."""

    saves_together = False

    def __init__(self):
        self.step = tf.Variable(0, dtype=tf.int64)
        self.fails_at = tf.Variable(-1, dtype=tf.int64)
        self.last_batch = LastBatch(self.step)
        self.seen = []
        make = functools.partial(Runner, codecs=(), take=self.last_batch.take)
        self.runner, self.excluded_runner = make(self), make(self.make_without_batch)

    def __call__(self, images, labels):
        with tf.control_dependencies([tf.numpy_function(self._note, [images, labels], [])]):
            return self.make_without_batch(images, labels)

    def make_without_batch(self, images, labels):
        del images, labels
        fails = tf.debugging.Assert(self.step != self.fails_at, [self.step])
        with tf.control_dependencies([fails]):
            self.step.assign_add(1)
        zero, no = tf.zeros([]), tf.constant(False)
        aggregate = Aggregate([], [], tf.zeros([0]), [], [], [])
        return StepResult(Losses(zero, zero), no, no, zero, [], aggregate)

    def fail(self, runner, batches, at):
        self.fails_at.assign(at)
        with pytest.raises(tf.errors.InvalidArgumentError):
            runner.many(batches, 10)
        self.fails_at.assign(-1)
        self.seen = []

    def _note(self, images, labels):
        self.seen.append((images.tolist(), int(labels)))


def batches_from(step, end=100):
    numbers = tf.data.Dataset.range(step, end)
    images = numbers.map(lambda i: tf.cast([i, i], tf.float32))
    return iter(tf.data.Dataset.zip(images, numbers))


def expected(steps):
    return [([float(step)] * 2, step) for step in steps]


@pytest.mark.parametrize("failing", ["runner", "excluded_runner"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("at", [0, 2])
def test_law_8_a_step_that_is_made_anew_gets_the_batch_that_it_had(failing, times, at):
    training, batches = Training(), batches_from(0)
    for _ in range(times):
        training.fail(getattr(training, failing), batches, at)
    training.runner.many(batches, 3)
    assert training.seen == expected(range(at, at + 3))


def test_law_8_after_a_step_back_all_batches_are_those_of_the_new_iterator():
    training = Training()
    training.fail(training.runner, batches_from(0), at=3)
    training.step.assign(2)
    training.last_batch.forget()
    training.runner.many(batches_from(2), 2)
    assert training.seen == expected([2, 3])


def test_law_8_no_batch_is_given_twice_where_the_input_fails():
    training, batches = Training(), batches_from(0, end=1)
    training.runner.many(batches, 1)
    assert training.last_batch.holds(0)
    for _ in range(2):
        with pytest.raises(tf.errors.OutOfRangeError):
            training.runner.many(batches, 1)
        assert not training.last_batch.holds(1)
    assert training.seen == expected([0])


@pytest.mark.parametrize(
    ("flags", "kinds"),
    [
        ({}, 1),
        ({"local_steps": 2, "codec": "ternary-feedback"}, 1),
        ({"local_steps": 2, "local_fragments": 2, "codec": "ternary-feedback"}, 2),
        ({"floating_grad_epoch": 2, "grad_bits": 1}, 2),
    ],
)
def test_steps_that_are_compiled_early_are_traced_once_and_take_no_batch(tmp_path, flags, kinds):
    config = TrainConfig(
        dataset_name="mnist", net="mlp", benchmark_mode=True, batch_size=4, train_dir=str(tmp_path)
    )
    prepared = preparation.prepare(dataclasses.replace(config, **flags), devices=["/CPU:0"])
    before = [variable.numpy() for variable in prepared.shared]
    preparation._compile(prepared)
    for variable, value in zip(prepared.shared, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    runners = {*prepared.training.runners, *prepared.training.float_runners}
    assert len(runners) == kinds
    for runner in runners:
        runner.many(iter(preparation.worker_batches(prepared, 0)), 1)
        assert runner._run.experimental_get_tracing_count() == 1
    prepared.lock.close()
