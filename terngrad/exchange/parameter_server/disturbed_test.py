"""Two workers and a ps over a bad network: equal bits at the end, by each of many plans."""

import contextlib
import queue

import numpy as np
import pytest
import tensorflow as tf

from terngrad.cluster.errors import FinishedError
from terngrad.coordination.client import InterruptionError
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.exchange import ParameterServerConnection
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.server.arithmetic import PackedArithmetic
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.ops.packing import ReferencePacking
from terngrad.ops.reference import ReferenceKernels
from terngrad.testing.addresses import free_addresses
from terngrad.testing.certificates import make_certificates
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.proxy import FaultKind, Proxy, plan
from terngrad.testing.ps_clients import WORKERS, config_of
from terngrad.testing.selection import sample
from terngrad.testing.threads import in_threads

SECS = HANG_SECS
STEPS, ITEMS = 6, 3000
DISTURBED = 5  # connections
# Without TLS nothing notices a changed bit.
PLAINTEXT = tuple(kind for kind in FaultKind if kind is not FaultKind.CORRUPT)
HOSTS = ("IP:127.0.0.1", "DNS:one", "DNS:two")


def contribution(rank, step, state):
    return np.float32(0.25) * state + np.arange(ITEMS, dtype=np.float32) * (rank + 1) + step


def codes(rank, step, state):
    """Codes of a worker, which depend on its state: uint32 [ITEMS, 2]."""
    nonzero = state.view(np.uint32) + np.uint32(step + 1) * np.arange(ITEMS, dtype=np.uint32)
    return np.stack([nonzero, nonzero & (np.uint32(0x5A5A5A5A) << np.uint32(rank))], axis=1)


def with_sums(state, sums):
    """A state that also depends on sums of codes, uint32 [ITEMS, 3]."""
    return state + np.float32(1e-9) * np.sum(sums.astype(np.float32), axis=1)


def undisturbed():
    state = np.zeros(ITEMS, np.float32)
    for step in range(STEPS):
        words = [tf.constant(codes(rank, step, state)) for rank in range(2)]
        floats = contribution(0, step, state) + contribution(1, step, state)
        state = with_sums(floats, ReferenceKernels().sum(words, 3).numpy())
    return state


def trained(rank, host, tls):
    """The state of a worker after all steps."""
    client = Client(config_of([host], rank, tls=tls))
    is_done = False
    try:
        connection = ParameterServerConnection(client)
        results = [queue.Queue(), queue.Queue()]
        for kind, box in zip((Kind.FLOATS, Kind.CODES), results, strict=True):
            client.declare(
                Operation(f"sum of {kind.name}", kind, ITEMS, 1, len(WORKERS)),
                lambda *result, box=box: box.put(result),
                lambda box=box: box.put(None),
                ReferencePacking(),
            )
        step, state = tf.Variable(0, dtype=tf.int64), tf.Variable(tf.zeros(ITEMS))
        connection.synchronize([step, state])
        while not is_done:
            if client.steps.interrupted:
                connection.synchronize([step, state])
            elif (now := int(step)) < STEPS:
                own = codes(rank, now, state.numpy())
                client.steps.push(0, now, contribution(rank, now, state.numpy()))
                client.steps.push(1, now, own)
                found = [box.get(timeout=SECS) for box in results]
                if not all(found):
                    raise AssertionError(client.failure)
                if client.steps.commit(now):
                    (floats, *_), (others, _, lacks_own, _) = found
                    words = [others.view(np.uint32).reshape(ITEMS, -1), *[own] * lacks_own]
                    total = ReferenceKernels().sum([tf.constant(each) for each in words], 3)
                    state.assign(with_sums(floats.view(np.float32), total.numpy()))
                    step.assign_add(1)
            else:
                with contextlib.suppress(InterruptionError):
                    client.coordination.gather("the end", b"")
                    is_done = True
        client.coordination.leave()
        return state.numpy()
    except FinishedError:  # its connection broke when the other one had everything, and left
        assert int(step) == STEPS
        return state.numpy()
    finally:
        client.close(is_done=is_done)


def assert_equal_bits(faults, tls):
    """Compares the bits of a training with those of an undisturbed one."""
    (target,) = free_addresses(1)
    rules = Rules(len(WORKERS), False, SECS)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(target, faults))
        server = Server(
            config_of([proxy.address], 0, tls=tls), PackedArithmetic(ReferencePacking()), rules
        )
        stack.callback(server.close)
        server.start(target)
        calls = [lambda rank=rank: trained(rank, proxy.address, tls) for rank in range(2)]
        for state in in_threads(*calls):
            np.testing.assert_array_equal(state, undisturbed(), err_msg=str(faults))
        # TLS ignores some bits of a handshake, such as the version of its first record.
        ends = (FaultKind.CUT, FaultKind.HALF_CLOSE)
        ended = [fault for fault in faults[:2] if fault.kind in ends]
        assert proxy.connections >= 2 * len(WORKERS) + len(ended)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample(range(10), in_ci=(0, 1, 5)))  # faults of each kind
def test_workers_get_equal_bits_over_a_bad_network(seed):
    assert_equal_bits(plan(seed, PLAINTEXT, DISTURBED), tls=None)


@pytest.fixture(scope="module", name="tls")
def _tls(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"), "ours", "all", HOSTS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample(range(30, 40), in_ci=(30, 34)))  # changed bits
def test_workers_with_certificates_get_equal_bits_over_a_network_that_changes_bits(seed, tls):
    assert_equal_bits(plan(seed, tuple(FaultKind), DISTURBED), tls)
