"""Tests of histograms of gradients."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_file_loader

from terngrad.codecs.codec import Payload
from terngrad.layout import Policy, make_layout
from terngrad.testing.memory import peak_bytes
from terngrad.training.summaries import SummaryWriter


def _write(folder: Path, values: np.ndarray) -> None:
    layout = make_layout(["w"], [values.shape], Policy())
    writer = SummaryWriter(str(folder), layout, lambda codecs: [Payload(0, 0)])
    writer.gradients([tf.constant(values, tf.float32)], {}, step=1)
    writer.flush()


def _buckets(folder: Path) -> np.ndarray:
    """Returns the rows (left edge, right edge, count) of the only histogram in a folder."""
    (path,) = folder.glob("events.out.tfevents.*")
    events = event_file_loader.EventFileLoader(str(path)).Load()
    values = [value for event in events for value in event.summary.value]
    (found,) = (each for each in values if each.metadata.plugin_data.plugin_name == "histograms")
    assert found.tag == "gradients/w"
    return tf.make_ndarray(found.tensor)


@pytest.mark.parametrize("shape", [(1000,), (20, 50), (1,), (0,)])
def test_a_histogram_counts_all_values_between_the_smallest_and_the_largest(tmp_path, shape):
    values = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    _write(tmp_path, values)
    left, right, counts = _buckets(tmp_path).T
    assert counts.sum() == values.size and len(counts) == 30
    np.testing.assert_array_equal(left[1:], right[:-1])
    if values.size > 1:
        assert (left[0], right[-1]) == (values.min(), values.max())
        edges = zip(left, right, strict=True)
        expected = [((values >= low) & (values < high)).sum() for low, high in edges]
        expected[-1] += (values == values.max()).sum()
        np.testing.assert_array_equal(counts, expected)


def test_a_histogram_is_that_of_tensorflow(tmp_path):
    values = np.random.default_rng(2).normal(size=5000).astype(np.float32)
    _write(tmp_path / "own", values)
    with tf.summary.create_file_writer(str(tmp_path / "tensorflow")).as_default(1):
        tf.summary.histogram("gradients/w", values)
    np.testing.assert_allclose(
        _buckets(tmp_path / "own"), _buckets(tmp_path / "tensorflow"), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("values", [[1e20], [3e38, 3e38], [np.inf, 1e20], [0.0], [np.nan]])
def test_a_histogram_of_equal_values_counts_them_in_the_last_bucket(tmp_path, values):
    _write(tmp_path, np.float32(values))
    finite = [value for value in np.float32(values) if np.isfinite(value)]
    left, right, counts = _buckets(tmp_path).T
    assert np.unique([left, right]).tolist() == (finite[:1] or [0.0])
    assert counts.tolist() == [0] * 29 + [len(finite)]


@pytest.mark.parametrize("other", [np.nan, np.inf, -np.inf])
def test_a_histogram_counts_finite_values_only(tmp_path, other):
    _write(tmp_path, np.float32([0.5, other, -0.25, 1.0]))
    left, right, counts = _buckets(tmp_path).T
    assert (left[0], right[-1], counts.sum()) == (-0.25, 1.0, 3)


def test_neighbours_in_float32_have_buckets_between_them(tmp_path):
    one = np.float32(1)
    _write(tmp_path, np.array([one, np.nextafter(one, np.float32(2))]))
    counts = _buckets(tmp_path)[:, 2]
    assert (counts[0], counts[-1], counts.sum()) == (1, 1, 2)


def test_a_histogram_needs_no_more_memory_than_a_few_copies_of_the_values(tmp_path):
    values = np.random.default_rng(3).normal(size=1 << 23).astype(np.float32)
    _write(tmp_path / "first", values[:1])  # what the first histogram alone needs
    assert peak_bytes(lambda: _write(tmp_path / "all", values)) < 8 * values.nbytes
