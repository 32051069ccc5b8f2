"""A mesh for each view: who leaves if not all reach each other, and graphs that outlive a view."""

import contextlib
import functools
import itertools
import socket
import threading

import numpy as np
import pytest
import tensorflow as tf

from terngrad.connect.config import ConnectConfig
from terngrad.exchange.exchange import Owner
from terngrad.exchange.local import LocalExchange
from terngrad.exchange.parameter_server.elastic_mesh import (
    ElasticMeshExchange,
    leavers,
    listen_for_members,
)
from terngrad.ops.mesh import Failure, Mesh, MeshKind
from terngrad.ops.native import NativeKernels
from terngrad.testing.addresses import free_ports
from terngrad.testing.coded_means import means_of, reduction_of
from terngrad.testing.threads import in_threads

CLOSE_SECS = 5.0


def test_nobody_leaves_where_all_reach_each_other():
    assert leavers({0: [], 1: [], 2: []}, coordinator=0) == set()


def test_the_worker_that_most_others_do_not_reach_leaves():
    assert leavers({0: [], 1: [3], 2: [3], 3: [1, 2]}, coordinator=0) == {3}
    assert leavers({0: [], 1: [], 2: [1], 3: [1]}, coordinator=0) == {1}


def test_of_two_workers_the_later_one_leaves_but_never_the_coordinator():
    assert leavers({0: [], 1: [2], 2: []}, coordinator=0) == {2}
    assert leavers({0: [2], 1: [], 2: [0, 1]}, coordinator=2) == {0, 1}


@pytest.mark.parametrize("workers", [3, 4])
def test_all_that_stay_reach_each_other(workers):
    pairs = [*itertools.combinations(range(workers), 2)]
    for missing in itertools.product((False, True), repeat=len(pairs)):
        unreached = {worker: [] for worker in range(workers)}
        for (a, b), is_missing in zip(pairs, missing, strict=True):
            if is_missing:
                unreached[a].append(b)
        left = leavers(unreached, coordinator=1)
        assert 1 not in left
        lost = [{a, b} for a, others in unreached.items() for b in others]
        assert all(pair & left for pair in lost)


def test_members_connect_at_a_known_port_where_it_is_free_and_between_machines():
    (known,) = free_ports(1)
    with listen_for_members(ConnectConfig([f"0.0.0.0:{known - 1000}"], 0)) as first:
        assert first.getsockname()[1] == known
        with listen_for_members(ConnectConfig([f"0.0.0.0:{known - 1000}"], 0)) as second:
            assert second.getsockname()[1] not in (0, known)
    with listen_for_members(ConnectConfig([f"127.0.0.1:{known - 1000}"], 0)) as local:
        assert local.getsockname()[1] != known
    with listen_for_members(ConnectConfig(["0.0.0.0:65000"], 0)) as above:
        assert above.getsockname()[1] != 66000


def connected(size):
    """Sockets of each process to each other one."""
    found = [{} for _ in range(size)]
    for a, b in itertools.combinations(range(size), 2):
        found[a][b], found[b][a] = socket.socketpair()
    return found


def test_a_graph_goes_on_with_more_and_with_fewer_processes():
    traced = []

    def sum_of(mesh):
        index = mesh.declare("sum", MeshKind.FLOATS, 1000)
        largest = mesh.declare("largest", MeshKind.MAXIMA, 3)

        @tf.function(autograph=False)
        def run(values):
            traced.append(mesh)
            total = mesh.join(values, index, [1000])[0]
            return total, mesh.join(values[:3], largest, [3])[0]

        return run

    with contextlib.ExitStack() as stack:
        meshes = [Mesh(0, ["one"], {}) for _ in range(3)]
        for mesh in meshes:
            stack.callback(mesh.close, CLOSE_SECS)
        runs = [sum_of(mesh) for mesh in meshes]
        for size in (1, 2, 3, 2, 1):
            for rank, sockets in enumerate(connected(size)):
                meshes[rank].end(CLOSE_SECS)
                meshes[rank].renew(rank, [f"worker {i}" for i in range(size)], sockets)
            act = lambda rank: lambda: runs[rank](tf.range(1000.0) + rank)
            for total, largest in in_threads(*map(act, range(size))):
                added = size * np.arange(1000.0) + sum(range(size))
                np.testing.assert_array_equal(total.numpy(), added)
                np.testing.assert_array_equal(largest.numpy(), np.arange(3.0) + size - 1)
    assert len(traced) == 3


class _Owner:
    """What joins a process by a mesh."""

    rank, size = 0, 3  # of the most processes

    def __init__(self):
        self.mesh = Mesh(0, ["one"], {})


@pytest.mark.parametrize("compiled", [False, True])
def test_law_4_owners_of_each_view_give_the_bits_of_one_that_begins_anew(native_library, compiled):
    kernels, steps = NativeKernels(), map(tf.constant, itertools.count())
    with contextlib.ExitStack() as stack:
        owners = [_Owner() for _ in range(3)]
        for each in owners:
            stack.callback(each.mesh.close, CLOSE_SECS)
        step = tf.Variable(0, dtype=tf.int64)
        exchanges = [ElasticMeshExchange(each, 1, kernels, step) for each in owners]
        reductions = [reduction_of(each, kernels) for each in exchanges]
        acts = [functools.partial(means_of, each) for each in reductions]
        if compiled:
            acts = [tf.function(act, autograph=False) for act in acts]
        for size in (3, 2, 3, 1):
            for rank, sockets in enumerate(connected(size)):
                owners[rank].mesh.end(CLOSE_SECS)
                owners[rank].mesh.renew(rank, [f"worker {i}" for i in range(size)], sockets)
                exchanges[rank].begin_view(Owner(rank, size, size))
            alone = reduction_of(LocalExchange(size, kernels), kernels)
            for _ in range(3):
                number = next(steps)
                wanted = means_of(alone, number, range(size))
                run = lambda rank, number=number: lambda: acts[rank](number, [rank])
                for means in in_threads(*map(run, range(size))):
                    for mean, one in zip(means, wanted, strict=True):
                        np.testing.assert_array_equal(mean, one)
            kept = [reduction.memory.read_sums() for reduction in reductions[:size]]
            whole = alone.memory.read_sums()
            for mine, one in zip(zip(*kept, strict=True), whole, strict=True):
                for pieces, total in zip(zip(*mine, strict=True), one, strict=True):
                    np.testing.assert_array_equal(sum(pieces), total)  # the others' are zeros


def test_law_8_memory_is_restored_to_the_owner_of_the_same_share_only(native_library, tmp_path):
    owner, kernels = _Owner(), NativeKernels()
    exchange = ElasticMeshExchange(owner, 1, kernels, tf.Variable(0, dtype=tf.int64))
    memory = reduction_of(exchange, kernels).memory
    (kept,) = (v for name, v in memory.variables.items() if name.startswith("kept_sums/1/"))
    exchange.begin_view(Owner(1, 3, 3))
    kept.assign(tf.ones_like(kept))
    memory.save(str(tmp_path), 5, 0)
    exchange.begin_view(Owner(1, 3, 3))
    assert not kept.numpy().any()
    assert memory.restore(str(tmp_path), 5) == ""
    assert kept.numpy().all()
    exchange.begin_view(Owner(1, 2, 2))
    why = memory.restore(str(tmp_path), 5)
    assert "is of owner 2 of 3 (3 shares) of the means, this one is owner 2 of 2 (2 shares)" in why
    assert not kept.numpy().any()
    owner.mesh.close(CLOSE_SECS)


def test_operations_fail_from_the_end_of_a_mesh_up_to_the_next_one():
    mesh = Mesh(0, ["one"], {})
    index = mesh.declare("sum", MeshKind.FLOATS, 3)
    assert mesh.failure == Failure("")
    mesh.fail("a worker left")
    assert mesh.failure == Failure("a worker left")
    with pytest.raises(tf.errors.UnavailableError, match="a worker left"):
        mesh.join(tf.ones(3), index, [3])
    mesh.renew(0, ["one"], {})
    np.testing.assert_array_equal(mesh.join(tf.ones(3), index, [3])[0], np.ones(3))
    mesh.end(CLOSE_SECS)
    with pytest.raises(tf.errors.UnavailableError):
        mesh.join(tf.ones(3), index, [3])
    mesh.close(CLOSE_SECS)


def test_a_step_that_ends_by_an_error_of_its_own_is_told_from_a_loss():
    own, other = socket.socketpair()  # the other process never answers
    mesh = Mesh(0, ["one", "two"], {1: own})
    index = mesh.declare("sum", MeshKind.FLOATS, 3)
    queue = tf.queue.FIFOQueue(1, [tf.float32])  # where the step waits, without a thread

    def fail_soon(values):
        threading.Thread(target=fail).start()
        return values

    def fail():
        other.recv(1)  # the operation is under way
        queue.close(cancel_pending_enqueues=True)

    @tf.function(autograph=False)
    def step():
        begun = tf.numpy_function(fail_soon, [tf.ones(3)], tf.float32, stateful=False)
        with tf.control_dependencies([begun]):
            return queue.dequeue(), mesh.join(tf.ones(3), index, [3])[0]

    with other, pytest.raises(tf.errors.OutOfRangeError):
        step()
    failure = mesh.failure
    assert (failure.is_own, failure.is_refusal) == (True, False)
    assert "a step ended before its operations" in failure.why
    mesh.close(CLOSE_SECS)
