"""Checks the collectives of a group on each of its processes.

python -m terngrad.testing.programs.collectives [ENGINE]
"""

from __future__ import annotations

import glob
import re
import sys
import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import terngrad

_LARGE = (1 << 60) + 1  # no float holds it
_LARGE_BUCKET = 5_000_000  # is sent while it is being encoded
_SPAN = re.compile(r"bucket 0/.*codes:Terngrad(Join|PushPull|Mpi)")


def main() -> None:
    """Raises AssertionError if a process gets anything but what all of them gave."""
    engine = sys.argv[1] if len(sys.argv) > 1 else "auto"
    group = terngrad.join(engine=engine, timeout_secs=60.0)
    objects(group)
    for wrap in (lambda function: function, tf.function):
        tensors(group, wrap)
    beside_gradients(group)
    timeline(group)
    print(f"{group.label} is done.")


def tensors(group: terngrad.Group, wrap: Callable) -> None:
    """Means, sums and maxima of all kinds of numbers, within a graph or without one."""
    size, ranks = group.size, range(group.size)
    own = {
        "half": tf.fill([2, 1], tf.cast(group.rank + 0.5, tf.float16)),
        "float": (tf.constant(0.1 * group.rank), tf.zeros([0, 3])),
        "double": [tf.constant([1 / 3 + group.rank, -1e300], tf.float64)],
    }
    reduced = {op: wrap(lambda op=op: group.all_reduce(own, op))() for op in ("mean", "sum", "max")}
    for op, reduce in (("mean", np.mean), ("sum", np.sum), ("max", np.max)):
        found, double = reduced[op], [1 / 3 + rank for rank in ranks]
        assert found["half"].dtype == tf.float16
        np.testing.assert_array_equal(found["half"], [[reduce([r + 0.5 for r in ranks])]] * 2)
        np.testing.assert_allclose(found["float"][0], reduce([0.1 * r for r in ranks]), 1e-6)
        assert found["float"][1].shape == (0, 3)
        np.testing.assert_allclose(found["double"][0][0], reduce(double), rtol=1e-15)

    whole = tf.constant([_LARGE, -group.rank], tf.int64)
    total = wrap(lambda: group.all_reduce(whole, "sum"))()
    assert total.numpy().tolist() == [_LARGE * size, -sum(ranks)]
    assert int(wrap(lambda: group.all_reduce(whole, "max"))()[0]) == _LARGE
    for kind in (tf.int8, tf.uint8, tf.uint16, tf.int32):
        found = wrap(lambda kind=kind: group.all_reduce(tf.cast(group.rank + 1, kind), "sum"))()
        assert found.dtype == kind
        assert int(found) == sum(ranks) + size
    eighths = tf.cast(group.rank + 0.5, tf.dtypes.experimental.float8_e4m3fn)
    mean = wrap(lambda: group.all_reduce(eighths, "mean"))()
    assert (mean.dtype, float(tf.cast(mean, tf.float32))) == (eighths.dtype, size / 2)
    is_any = wrap(lambda: group.all_reduce([group.rank == 1, False], "max"))()
    assert [bool(each) for each in is_any] == [True, False]

    twice = wrap(lambda: group.all_reduce(group.all_reduce(float(group.rank), "sum"), "sum"))
    for _ in range(3):
        assert float(twice()) == size * sum(ranks)


def objects(group: terngrad.Group) -> None:
    """Values of Python, also large ones and those of unequal sizes."""
    chiefs = {1: ("a", b"\x00\xff", None), "x": [True, 2.5, np.arange(3, dtype=np.int16)]}
    found = group.broadcast_object(chiefs if group.is_chief else print)
    assert list(found) == [1, "x"]
    assert found[1] == ("a", b"\x00\xff", None)
    assert found["x"][2].dtype == np.int16
    assert found["x"][2].tolist() == [0, 1, 2]
    large = np.random.default_rng(group.rank).normal(size=40_000 * (1 + group.rank))
    gathered = group.all_gather_object({"rank": group.rank, "values": large})
    for rank, each in enumerate(gathered):
        assert each["rank"] == rank
        expected = np.random.default_rng(rank).normal(size=40_000 * (1 + rank))
        np.testing.assert_array_equal(each["values"], expected)
    np.testing.assert_array_equal(group.broadcast_object(large), gathered[0]["values"])


def beside_gradients(group: terngrad.Group) -> None:
    """In one graph with a reducer, whose means stay the same."""
    reducer = terngrad.Reducer([tf.Variable(tf.zeros([5]))], group, gradients="float32")

    @tf.function
    def step(factor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        (mean,) = reducer([tf.fill([5], factor * (group.rank + 1))])
        return mean, group.all_reduce(factor + group.rank, "max")

    for i in range(1, 4):
        mean, largest = step(tf.constant(float(i)))
        np.testing.assert_allclose(mean, [i * (group.size + 1) / 2] * 5, rtol=1e-6)
        assert float(largest) == i + group.size - 1


def timeline(group: terngrad.Group) -> None:
    """A profile has a span for each bucket's exchange, from its codes to the mean gradients."""
    reducer = terngrad.Reducer([tf.Variable(tf.zeros([_LARGE_BUCKET]))], group, gradients="ternary")
    step = tf.function(lambda: reducer([tf.ones([_LARGE_BUCKET])]), autograph=False)
    step()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        step()
        tf.profiler.experimental.stop()
        (path,) = glob.glob(f"{folder}/plugins/profile/*/*.xplane.pb")
        space = xplane_pb2.XSpace()
        with open(path, "rb") as file:
            space.ParseFromString(file.read())
    lengths = {}
    for plane in space.planes:
        for event in (event for line in plane.lines for event in line.events):
            name = plane.event_metadata[event.metadata_id].name
            lengths[name] = max(lengths.get(name, 0), event.duration_ps)
    found = {name: ps for name, ps in lengths.items() if _SPAN.fullmatch(name)}
    assert found, sorted(lengths)
    assert all(found.values()), found
    print(f"spans: {sorted(found)}")


if __name__ == "__main__":
    main()
