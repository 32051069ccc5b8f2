"""Sides take turns, and their times and ratios are right."""

import time

import pytest
import tensorflow as tf

from benchmarks import timing
from benchmarks.timing import Options
from inception.flags.configs import TrainConfig


def recorder(calls, name, ms_per_step=0.0):
    """Returns a variant that records its calls."""

    def variant(count):
        calls.append((name, count))
        time.sleep(count * ms_per_step / 1000)

    return variant


def test_variants_take_turns_forth_and_back():
    calls = []
    variants = {name: recorder(calls, name) for name in "ab"}
    times = timing.alternate(variants, Options(rounds=3, slice_secs=0), warmup_steps=7)
    turns = [name for name, count in calls if count == 7]
    assert turns == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(values) for name, values in times.wall.items()} == {"a": 3, "b": 3}


def test_a_slice_takes_as_many_steps_as_fit_and_warmup_is_not_timed(monkeypatch):
    calls, now = [], [0.0]
    monkeypatch.setattr(time, "sleep", lambda secs: now.__setitem__(0, now[0] + secs))
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: now[0] / 4)
    variant = recorder(calls, "a", ms_per_step=2.0)
    times = timing.alternate({"a": variant}, Options(rounds=1, slice_secs=0.04), warmup_steps=100)
    assert calls[-2:] == [("a", 100), ("a", 20)]
    assert times.wall["a"] == pytest.approx([2.0])
    assert times.cpu["a"] == pytest.approx([0.5])


def test_load_that_outlasts_a_round_leaves_the_ratio():
    times = {"a": [10.0, 30.0, 10.0], "b": [20.0, 60.0, 20.0]}
    assert timing.ratio(times, "b", "a") == 2.0


def test_a_training_that_diverges_is_not_timed():
    config = TrainConfig(
        dataset_name="mnist", net="mlp", optimizer="gd", initial_learning_rate=1e38
    )
    batches = tf.data.Dataset.from_tensors(
        (tf.ones([32, 28, 28, 1]), tf.zeros([32], tf.int32))
    ).repeat()
    with pytest.raises(ValueError, match="mlp: the training diverged"):
        timing.suite_variant(config, batches)(20)
