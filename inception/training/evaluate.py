"""Evaluates one checkpoint, or each new checkpoint of a running training."""

import contextlib
import functools
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, MutableSet, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from inception.flags.configs import EvalConfig
from inception.flags.table import refuse
from inception.results import metrics
from inception.results.logs import timestamp
from inception.results.metrics import Metrics
from inception.training import batches, pretrained, settings
from inception.training.problem import Problem, problem_of
from inception.training.refusals import is_weight_file
from slim.datasets import dataset_factory, dataset_info
from slim.datasets.dataset_factory import Dataset
from slim.nets import nets_factory
from terngrad.training import checkpoints
from terngrad.training.classifier import Classifier
from terngrad.training.summaries import EventWriter

_BATCHES_PER_LINE = 20
_FIRST_POLL_SECS = 5.0  # while there is no checkpoint yet


class PreparedEvaluation(NamedTuple):
    """The parts of an evaluation: a net, its compiled metrics, and one pass over the data."""

    problem: Problem
    dataset: Dataset
    model: keras.Model
    count_hits: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    batches: tf.data.Dataset


class Evaluation(NamedTuple):
    """An evaluation of checkpoints; `prepare` builds the rest for the input of some of them."""

    config: EvalConfig
    dataset: Dataset
    prepare: Callable[[Problem], PreparedEvaluation]


def evaluate(config: EvalConfig) -> None:
    """Prints the metrics of the newest checkpoint and writes them to eval_dir.

    Without run_once it continues with each newer checkpoint, up to that of max_steps, unless
    checkpoint_dir names a single checkpoint.

    Raises:
      ValueError: there is no checkpoint (run_once), it belongs to another net, records are missing
        or damaged, or eval_dir is not writable.
    """
    if config.num_intra_threads:
        tf.config.threading.set_intra_op_parallelism_threads(config.num_intra_threads)
    if config.num_inter_threads:
        tf.config.threading.set_inter_op_parallelism_threads(config.num_inter_threads)
    with tf.device(choose_device(config.device, len(tf.config.list_logical_devices("GPU")))):
        evaluation = prepare_evaluation(config)
        with contextlib.closing(_open_writer(config.eval_dir)) as writer:
            removed: set[str] = set()
            for path in _paths(config, removed):
                if not _evaluate_and_log(path, evaluation, writer):
                    removed.add(path)


def prepare_evaluation(config: EvalConfig, *, in_memory: bool = False) -> Evaluation:
    """Opens the records that `config` names; `in_memory` keeps their images between checkpoints."""
    dataset = dataset_factory.get_dataset(config.dataset_name, config.subset, config.data_dir)

    @functools.lru_cache(maxsize=1)  # most checkpoints have the input of the one before
    def prepare(problem: Problem) -> PreparedEvaluation:
        model = nets_factory.build_net(
            config.net,
            num_classes=problem.num_classes,
            image_size=problem.image_size,
            for_training=False,
        )
        count_hits = metrics.hit_counter(Classifier(model).logits)
        examples = batches.evaluation_batches(config, problem, dataset)
        examples = examples.cache() if in_memory else examples
        return PreparedEvaluation(problem, dataset, model, count_hits, examples)

    return Evaluation(config, dataset, prepare)


def measure_checkpoint(path: str, evaluation: Evaluation) -> Metrics:
    """Returns the metrics of a checkpoint.

    Raises:
      ValueError: the checkpoint belongs to another net, or a record is damaged.
    """
    return _measure(_load(path, evaluation))


def measure_checkpoints(
    paths: Sequence[str], *, net: str, dataset_name: str, data_dir: str
) -> list[Metrics]:
    """Returns the metrics of checkpoints on the test images, with the weights' moving averages."""
    config = EvalConfig(
        net=net,
        dataset_name=dataset_name,
        data_dir=data_dir,
        subset="test",
        batch_size=500,
        num_examples=-1,
    )
    evaluation = prepare_evaluation(config, in_memory=True)
    return [measure_checkpoint(path, evaluation) for path in paths]


def choose_device(name: str, num_gpus: int) -> str:
    """Returns TensorFlow's name of /gpu:N or /cpu:0; without a GPU the CPU's, with a log line."""
    match = re.fullmatch(r"/(?:device:)?(?:cpu:0|gpu:(\d+))", name.lower())
    if not match or (num_gpus and match[1] and int(match[1]) >= num_gpus):
        gpus = "".join(f"/gpu:{i}, " for i in range(max(num_gpus, 1)))
        raise refuse("device", name, f"must be one of {gpus}/cpu:0")
    if not match[1]:
        return "/CPU:0"
    if not num_gpus:
        print(f"There is no GPU: {name} means the CPU.")
        return "/CPU:0"
    return f"/GPU:{match[1]}"


def follow(
    newest: Callable[[], str | None],
    interval_secs: float,
    max_steps: int,
    sleep: Callable[[float], None],
    removed: MutableSet[str],
) -> Iterator[str]:
    """Yields each new checkpoint once, up to that of `max_steps`.

    Args:
      newest: returns the path of the newest checkpoint, or None.
      interval_secs: polling interval.
      max_steps: the first checkpoint at or after this step is the last.
      sleep: waits for a number of seconds.
      removed: to it the caller adds a path that was removed before it was read; then the newest
        checkpoint is looked for at once.
    """
    step, waiting = -1, False
    while step < max_steps:
        path = newest()
        if path and checkpoints.step_of(path) != step:
            yield path
            if path in removed:
                removed.remove(path)
                continue
            step = checkpoints.step_of(path)
        elif not path and not waiting:
            print("No checkpoint file found yet; waiting for the first.", flush=True)
            waiting = True
        if step < max_steps:
            sleep(interval_secs if step >= 0 else min(interval_secs, _FIRST_POLL_SECS))


def _paths(config: EvalConfig, removed: MutableSet[str]) -> Iterator[str]:
    """Yields the checkpoints to evaluate; for `removed` see `follow`."""
    location = config.checkpoint_dir.removesuffix(".index")
    newest = lambda: _newest(location)
    if not config.run_once and not _exists(location):
        yield from follow(newest, config.eval_interval_secs, config.max_steps, time.sleep, removed)
        return
    while path := newest():
        for line in checkpoints.left_out(location):
            print(line)
        yield path
        if path not in removed:
            return
        removed.remove(path)
    raise refuse("checkpoint_dir", config.checkpoint_dir, "holds no checkpoint")


def _newest(location: str) -> str | None:
    """Returns the newest checkpoint of a folder, or the location itself if it is a checkpoint."""
    return location if _exists(location) else checkpoints.latest_checkpoint(location)


def _exists(path: str) -> bool:
    return os.path.isfile(path + ".index") or is_weight_file(path)


def _step_of(path: str) -> int:
    """Returns the step at the end of a checkpoint's name; 0 if there is none."""
    match = re.search(r"-(\d+)$", path)
    return int(match[1]) if match else 0


def _open_writer(eval_dir: str) -> EventWriter:
    try:
        os.makedirs(eval_dir, exist_ok=True)
        tempfile.TemporaryFile(dir=eval_dir).close()  # TensorFlow's own error has many lines
    except OSError as error:
        raise refuse("eval_dir", eval_dir, f"is not writable ({error.strerror})") from error
    return EventWriter(eval_dir)


def _load(path: str, evaluation: Evaluation) -> PreparedEvaluation:
    """Returns the evaluation of a checkpoint, whose weights its net gets."""
    if not pretrained.is_of_suite(path):
        return _load_of_others(path, evaluation)
    settings.check_net(path, evaluation.config.net)
    records = f"the records of {evaluation.config.data_dir}"
    dataset_info.check_labels(os.path.dirname(path), evaluation.dataset.class_names, records)
    config = settings.with_input_of_checkpoint(path, evaluation.config)
    prepared = evaluation.prepare(problem_of(config))
    weights = nets_factory.named_variables(prepared.model)
    with settings.naming_image_size(path, config):
        checkpoints.restore_weights(path, weights, averages=config.restore_avg_var)
    return prepared


def _load_of_others(path: str, evaluation: Evaluation) -> PreparedEvaluation:
    """Does the same for a file that another program wrote, and that does not say more."""
    config = evaluation.config
    if config.restore_avg_var:
        why = "another program wrote it; use its weights, not averages"
        raise ValueError(f"{path}: {why} (--restore_avg_var=False).")
    prepared = evaluation.prepare(problem_of(config))
    pretrained.load_all(path, config.net, nets_factory.named_variables(prepared.model))
    return prepared


def _measure(
    prepared: PreparedEvaluation, after_batch: Callable[[int], None] = lambda examples: None
) -> Metrics:
    with batches.naming_bad_records(prepared.problem, prepared.dataset):
        return metrics.measure(prepared.count_hits, prepared.batches, after_batch)


def _evaluate_and_log(path: str, evaluation: Evaluation, writer: EventWriter) -> bool:
    """Returns False if the checkpoint was removed before it was read."""
    config, step = evaluation.config, _step_of(path)
    try:
        prepared = _load(path, evaluation)
    except ValueError:
        if _exists(path):
            raise
        print(f"{path} was removed by the training before it was read.", flush=True)
        return False
    # The original programs spell it like this, and scripts look for these lines.
    print(f"Succesfully loaded model from {path} at step={step}.")
    print(f"{timestamp()}: starting evaluation on ({config.subset}).", flush=True)
    examples = batches.num_evaluated(config, prepared.dataset)
    found = _measure(prepared, _speed_lines(math.ceil(examples / config.batch_size)))
    print(f"{timestamp()}: {found}", flush=True)
    with writer.at(step):
        tf.summary.scalar("Precision @ 1", found.precision_at_1)
        tf.summary.scalar("Recall @ 5", found.recall_at_5)
    writer.flush()
    return True


def _speed_lines(num_batches: int) -> Callable[[int], None]:
    """Returns a function that prints the speed every 20 batches; to be called after each batch."""
    done = examples = 0
    start = time.perf_counter()

    def after_batch(size: int) -> None:
        nonlocal done, examples, start
        done, examples = done + 1, examples + size
        if done % _BATCHES_PER_LINE == 0:
            secs = time.perf_counter() - start
            print(
                f"{timestamp()}: [{done} batches out of {num_batches}] "
                f"({examples / secs:.1f} examples/sec; {secs / _BATCHES_PER_LINE:.3f}sec/batch)",
                flush=True,
            )
            examples, start = 0, time.perf_counter()

    return after_batch
