"""The mesh over a bad network: its results are right, or it ends and names the other process."""

import contextlib
import dataclasses
import socket
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from terngrad.cluster.addresses import split_address
from terngrad.exchange.sockets import SocketTransport, encrypted
from terngrad.ops import tls
from terngrad.ops.mesh import Mesh, MeshKind
from terngrad.testing.certificates import make_certificates
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.proxy import Fault, FaultKind, Proxy, plan
from terngrad.testing.selection import sample
from terngrad.testing.threads import in_threads

NAMES = ["worker 0 (one:1)", "worker 1 (two:2)"]
TIMEOUT_SECS = HANG_SECS
ROUNDS = 3
HARMLESS = (FaultKind.DELAY, FaultKind.THROTTLE)


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory, native_library):
    made = make_certificates(tmp_path_factory.mktemp("certificates"), "ours", "all")
    return tls.Files(made.ca, made.cert, made.key)


class _Connected(contextlib.ExitStack):
    """Two sockets with a proxy between them."""

    def __init__(self, fault):
        super().__init__()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            proxy = self.enter_context(Proxy(address, [fault]))
            client = socket.create_connection(split_address(proxy.address), TIMEOUT_SECS)
            server, _ = listener.accept()
        server.settimeout(None)
        client.settimeout(None)
        self.ends = (server, client)


class _Port:
    def close(self):
        pass


def exchanged(fault, count, files=None):
    """What two processes' exchanges return or raise; the connection has a fault."""
    with _Connected(fault) as connected:

        def process(rank):
            end = connected.ends[rank]
            if files:
                server = rank == 0
                end = tls.encrypt(
                    end, files, "127.0.0.1", is_server=server, timeout_secs=TIMEOUT_SECS
                )
            mesh = Mesh(rank, NAMES, {1 - rank: end})
            with contextlib.closing(SocketTransport(rank, 2, mesh, _Port())) as transport:
                found = []
                for i in range(ROUNDS):
                    found.append(transport.sum_floats(values(rank, i, count), "floats")[0].numpy())
                    found.append(transport.all_gather(tf.constant([rank + i]), "few").numpy())
                return found

        return in_threads(lambda: process(0), lambda: process(1))


def values(rank, i, count):
    return tf.constant(np.random.default_rng([rank, i]).normal(size=count), tf.float32)


def assert_right_or_named(found, count):
    """Both have the right sums, or a line about the other process; returns the lines."""
    reported = []
    for rank, each in enumerate(found):
        if isinstance(each, Exception):
            assert isinstance(each, tf.errors.UnavailableError | ConnectionError), repr(each)
            handshake = isinstance(each, ConnectionError)
            assert handshake or NAMES[1 - rank] in str(each), each
            reported.append(str(each))
            continue
        for i in range(ROUNDS):
            total = values(0, i, count) + values(1, i, count)
            np.testing.assert_array_equal(each[2 * i], total)
            np.testing.assert_array_equal(each[2 * i + 1], [[i], [i + 1]])
    return reported


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample(range(20), in_ci=(1, 2, 5, 13, 14)))  # of each kind
def test_over_a_bad_network_results_are_right_or_the_other_is_named(seed, files):
    for own, kinds in ((None, set(FaultKind) - {FaultKind.CORRUPT}), (files, set(FaultKind))):
        (fault,) = plan(seed, sorted(kinds, key=lambda kind: kind.name), 1)
        fault = dataclasses.replace(fault, after_bytes=fault.after_bytes * 7)
        reported = assert_right_or_named(exchanged(fault, 3000, own), 3000)
        assert not reported or fault.kind not in HARMLESS, (fault, reported)


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_process_that_dies_within_a_chunk_is_named(encrypted, files):
    count = 1 << 18  # several chunks
    fault = Fault(FaultKind.CUT, to_server=True, after_bytes=300_000, bit=0)
    found = exchanged(fault, count, files if encrypted else None)
    assert len(assert_right_or_named(found, count)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("to_server", [False, True])
def test_a_bit_that_changes_on_the_way_ends_an_encrypted_exchange(to_server, files):
    fault = Fault(FaultKind.CORRUPT, to_server, after_bytes=50_000, bit=3)
    found = exchanged(fault, 50_000, files)
    reported = assert_right_or_named(found, 50_000)
    assert "TLS: decryption failed or bad record mac" in str(found[not to_server])
    assert len(reported) == 2
    receiver = 0 if to_server else 1  # it is not to blame, nor is the other
    link = f"the connection from {NAMES[1 - receiver]} to {NAMES[receiver]}: bytes have changed"
    # The sender learns it by an alert, unless the end of the connection overtakes that.
    assert link in str(found[receiver])


def test_a_frame_that_arrives_with_the_end_of_the_handshake_is_read(files):
    octets = 8192
    client, from_client = socket.socketpair()
    server, from_server = socket.socketpair()

    def process(rank, end):
        encrypted = tls.encrypt(
            end, files, "127.0.0.1", is_server=rank == 0, timeout_secs=TIMEOUT_SECS
        )
        mesh = Mesh(rank, NAMES, {1 - rank: encrypted})
        with contextlib.closing(SocketTransport(rank, 2, mesh, _Port())):
            gather = mesh.declare("bytes", MeshKind.GATHER, octets)
            return mesh.join(tf.fill([octets], tf.cast(rank, tf.uint8)), gather, [2, octets])[0]

    def forward(source, target):
        with contextlib.suppress(OSError):  # they have left
            while received := source.recv(1 << 16):
                target.sendall(received)
            target.shutdown(socket.SHUT_WR)

    def to_server():
        from_server.sendall(from_client.recv(1 << 16))  # the client's first message
        held = b""
        while len(held) < octets:
            held += from_client.recv(1 << 16)
        from_server.sendall(held)  # its last message of the handshake, and a frame
        forward(from_client, from_server)

    with from_client, from_server:
        gathered = in_threads(
            lambda: process(0, server),
            lambda: process(1, client),
            to_server,
            lambda: forward(from_server, from_client),
        )
    for each in gathered[:2]:
        np.testing.assert_array_equal(each, [[0] * octets, [1] * octets])


def test_a_check_that_fails_ends_the_handshakes_of_a_process(files):
    class _EndedError(Exception):
        pass

    def check():
        raise _EndedError

    config = types.SimpleNamespace(
        rank=0, worker_hosts=["127.0.0.1:1", "127.0.0.1:2"], tls=types.SimpleNamespace(files=files)
    )
    names = types.SimpleNamespace(name=lambda peer: NAMES[peer])
    one, silent = socket.socketpair()
    deadline = time.monotonic() + 1e6  # so that without the check it hangs
    with silent, pytest.raises(_EndedError):
        encrypted(config, {1: one}, names, deadline, check=check)
    assert one.fileno() == -1
