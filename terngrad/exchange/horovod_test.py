"""Calls of Horovod; two_shot_test.py tests their results."""

import os

import pytest
import tensorflow as tf

_SIZES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"


@pytest.fixture
def horovod(monkeypatch):
    """The module in a process that seems to be one of two; no launcher started it."""
    why = "Horovod is not installed: bash scripts/install_horovod.sh"
    pytest.importorskip("horovod.tensorflow", reason=why)
    from terngrad.exchange import horovod

    monkeypatch.setattr(horovod.hvd, "init", lambda: None)
    monkeypatch.setattr(horovod.hvd, "rank", lambda: 1)
    monkeypatch.setattr(horovod.hvd, "size", lambda: 2)
    monkeypatch.setattr(horovod.hvd.global_process_set, "size", lambda: 2)
    for name in (*_SIZES, _TIMEOUT):
        monkeypatch.setenv(name, "")  # so that it is restored even if it was not set
        monkeypatch.delenv(name)
    return horovod


def test_operations_have_the_given_names_and_do_not_wait_for_each_other(horovod):
    transport = horovod.HorovodTransport()

    @tf.function(autograph=False)
    def exchange(parts):
        with tf.name_scope("scope"):
            gathered = transport.all_gather(parts[1], "bucket 0/max")
        received = transport.all_to_all(parts, "bucket 0/codes")
        sums = transport.all_gather(parts[0], "bucket 0/sums")
        return gathered, received, sums, transport.broadcast(parts, "state")

    traced = exchange.get_concrete_function(tf.TensorSpec([2, 3], tf.int32))
    operations = [op for op in traced.graph.get_operations() if op.type.startswith("Horovod")]
    assert [op.name for op in operations] == [
        "scope/bucket_0.max",
        "bucket_0.codes",
        "bucket_0.sums",
        "state",
    ]
    for operation in operations:
        assert operation.get_attr("ignore_name_scope")
        assert not operation.control_inputs
    assert [tuple(shape) for shape in traced.output_shapes] == [(2, 3)] * 4


def test_names_that_would_become_the_same_are_refused(horovod):
    transport = horovod.HorovodTransport()

    @tf.function(autograph=False)
    def exchange(value):
        return transport.broadcast(value, "a b"), transport.broadcast(value, "a_b")

    with pytest.raises(ValueError, match="operations 'a_b' and 'a b' get the same name"):
        exchange.get_concrete_function(tf.TensorSpec([2]))


def test_law_10_a_process_that_no_launcher_started_is_refused(horovod, monkeypatch):
    monkeypatch.setattr(horovod.hvd, "size", lambda: 1)
    with pytest.raises(ValueError, match="must be started by horovodrun or mpirun"):
        horovod.start(60.0)


@pytest.mark.parametrize("name", _SIZES)
def test_law_10_processes_that_do_not_see_each_other_are_refused(horovod, monkeypatch, name):
    monkeypatch.setenv(name, "3")
    with pytest.raises(ValueError, match="3 processes were started, but this one sees 2"):
        horovod.start(60.0)
    monkeypatch.setenv(name, "2")
    transport = horovod.start(60.0)
    assert (transport.rank, transport.size) == (1, 2)


def test_gloo_waits_longer_than_the_time_out_unless_the_environment_sets_it(horovod, monkeypatch):
    horovod.start(2.5)
    assert os.environ[_TIMEOUT] == "8"
    monkeypatch.setenv(_TIMEOUT, "7")
    horovod.start(2.5)
    assert os.environ[_TIMEOUT] == "7"
