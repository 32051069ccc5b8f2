"""Reductions and objects of a group, on one process and on several of each engine."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from terngrad.library import objects
from terngrad.library.group import Group
from terngrad.testing.processes import Started, finished, launch_environments, mpirun

ALONE = Group()
PROGRAM = [sys.executable, "-m", "terngrad.testing.programs.collectives"]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "servers"), [(3, 0), (2, 1)])
def test_all_processes_get_what_all_of_them_gave(workers, servers):
    places = launch_environments(workers, servers)
    for output, status in finished([PROGRAM] * len(places), places):
        assert status == 0, output
        assert "retracing" not in output, output


@pytest.mark.slow
@pytest.mark.exhaustive
def test_all_processes_of_mpi_get_what_all_of_them_gave():
    with Started([*mpirun(2), *PROGRAM[1:], "mpi"]) as run:
        run.succeed()
    assert all(f"worker {rank} of 2 is done." in run.output for rank in (0, 1)), run.output


@pytest.mark.parametrize("wrap", [lambda function: function, tf.function])
def test_alone_a_reduction_is_ones_own_value(wrap):
    value = {"a": [1.5, np.float64(0.1)], "b": np.array([[3]], np.int64)}
    for op in ("sum", "max"):
        found = wrap(lambda op=op: ALONE.all_reduce(value, op))()
        assert float(found["a"][0]) == 1.5
        assert found["a"][1].numpy() == np.float64(0.1)
        assert found["b"].numpy().tolist() == [[3]]
    assert float(wrap(lambda: ALONE.all_reduce(2.0))()) == 2.0


@pytest.mark.parametrize(
    ("value", "op", "error", "why"),
    [
        (1.0, "min", ValueError, "op is 'min'; allowed are mean, sum, max"),
        (["a"], "max", TypeError, "a value is string; allowed are real numbers and bools"),
        (None, "sum", TypeError, "a value is NoneType; allowed are numbers, bools, arrays and"),
        ({"a": {1, 2}}, "max", TypeError, "a value is set; allowed are numbers, bools, arrays"),
        ([1.0, print], "max", TypeError, "a value is builtin_function_or_method; allowed are"),
        (1j, "sum", TypeError, "a value is complex128; allowed are real numbers"),
        ([True], "sum", TypeError, "op='sum' of bool; allowed is max"),
        ([1], "mean", TypeError, "op='mean' of int32; allowed are floats: cast, or take sum"),
    ],
)
def test_what_cannot_be_reduced_is_named(value, op, error, why):
    with pytest.raises(error, match=f"all_reduce: {why}"):
        ALONE.all_reduce(value, op)


def test_a_shape_that_is_not_fixed_is_named():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def reduced(value):
        return ALONE.all_reduce(value)

    with pytest.raises(ValueError, match=r"a value has the shape \(None,\); allowed are fixed"):
        reduced(tf.ones([3]))


VALUES = [
    None,
    [],
    (1, (2.5, "ü"), [True, b"\x00\xff"]),
    {"a": {1: 2, (3, "x"): [None]}, None: 1 << 80},
    [float("inf"), -0.0],
]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_survives_its_bytes(value):
    found = objects.unpack(objects.pack(value, "value"))
    assert repr(found) == repr(value)
    assert ALONE.broadcast_object(value) == value
    assert ALONE.all_gather_object(value) == [value]


@pytest.mark.parametrize("dtype", ["float16", "<i8", ">u4", "bool", "complex64"])
def test_an_array_survives_its_bytes(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype).T
    found, scalar = objects.unpack(objects.pack([array, array[1, 1]], "value"))
    assert found.dtype == array.dtype
    assert type(scalar) is type(array[1, 1])
    np.testing.assert_array_equal(found, array)
    found[0] = 0  # it is not read-only


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": [1, print]}, r"value\['a'\]\[1\] is builtin_function_or_method; allowed are None"),
        ([{1, 2}], r"value\[0\] is set"),
        (np.array(["a"]), "value is ndarray of str"),
        (np.array([None]), "value is ndarray of object"),
        (np.str_("a"), "value is str_ of str"),
        (tf.constant(1), "value is EagerTensor"),
        (type("Own", (dict,), {})(), "value is Own"),
    ],
)
def test_what_cannot_travel_is_named_by_its_place(value, why):
    with pytest.raises(TypeError, match=why):
        objects.pack(value, "value")


def test_values_that_are_too_large_or_too_deep_are_refused(monkeypatch):
    monkeypatch.setattr(objects, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="value takes 12 bytes; allowed are up to 10"):
        objects.pack("a" * 10, "value")
    deep = []
    for _ in range(101):
        deep = [deep]
    with pytest.raises(ValueError, match="more than 100 levels"):
        objects.pack(deep, "value")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[" * 500_000,
        b'{"a": 1}',
        b"[]",
        b'["set", 1]',
        b'["dict", [["list"], 1]]',
        b'["dict", 1]',
        b'["array", "O", [1], "AAAAAAAAAAA="]',
        b'["array", "V8", [1], "AAAAAAAAAAA="]',
        b'["array", "<f8", [-1, 3], "AAAAAAAAAAA="]',
        b'["array", "<f8", [1000000000000], "AAAAAAAAAAA="]',
        b'["array", "f8,O", [1], ""]',
        b'["bytes", 3]',
        b'["bytes", "A"]',
    ],
)
def test_bytes_of_no_value_are_refused(content):
    with pytest.raises(ValueError, match="received bytes are no value"):
        objects.unpack(content)
