"""A ps and its clients over real connections: bytes, and clients that are wrong or hostile."""

import contextlib
import os
import queue
import re
import socket
import subprocess
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest

from terngrad.codecs.planes import plane_count
from terngrad.exchange.channel import MembershipError, PortError
from terngrad.exchange.parameter_server.client import Client
from terngrad.exchange.parameter_server.messages import (
    HELLO_KEY,
    SERVICE,
    Header,
    Hello,
    Word,
    join_frame,
    split_frame,
)
from terngrad.exchange.parameter_server.operations import PIECE_BYTES, Kind, Operation
from terngrad.exchange.parameter_server.reduction import Reduction
from terngrad.exchange.parameter_server.security import Tls, is_loopback, listening_address
from terngrad.exchange.parameter_server.server import Server
from terngrad.exchange.parameter_server.streams import Outbox, identity
from terngrad.exchange.two_shot_test import free_hosts
from terngrad.ops.reference import ReferenceKernels

SECS = 60.0
WORKERS = ["one:1", "two:2"]


@contextlib.contextmanager
def serving(count=1, tls=None, workers=WORKERS, at=None):
    """Servers, and their addresses."""
    hosts = at or free_hosts(count)
    reduction = Reduction(ReferenceKernels(), len(workers))
    servers = [Server(i, hosts, workers, reduction.reduce, SECS, tls) for i in range(count)]
    for server, host in zip(servers, hosts, strict=True):
        server.start(host)
    try:
        yield servers, hosts
    finally:
        for server in servers:
            server.close()


@contextlib.contextmanager
def joined(hosts, workers=WORKERS, tls=None):
    """A client of each worker."""
    clients = [Client(hosts, workers, rank, SECS, tls) for rank in range(len(workers))]
    try:
        for client in clients:
            client.meeting.wait_for_all(SECS)
        yield clients
    finally:
        for client in clients:
            client.close(is_done=False)


def run(clients, contents, name="sum", kind=Kind.FLOATS, local_nodes=1, step=0):
    """What each client receives of an operation."""
    boxes = [queue.Queue() for _ in clients]
    items = contents[0].nbytes // Operation(0, name, kind, 0, local_nodes, 1).pushed_bytes
    for client, content, box in zip(clients, contents, boxes, strict=True):
        index = client.declare(name, kind, items, local_nodes, box.put, lambda: None)
        client.push(index, step, content)
    return [box.get(timeout=SECS) for box in boxes]


def assert_it_works(clients):
    name = f"check {time.monotonic()}"
    for result in run(clients, [np.float32([1, 2]), np.float32([3, 4])], name):
        np.testing.assert_array_equal(result.view("<f4"), [4, 6])


def stranger(host, hello=None, method="Exchange", credentials=None, messages=()):
    """What a client of its own making is told."""
    make = grpc.secure_channel if credentials else grpc.insecure_channel
    with make(host, *([credentials] if credentials else [])) as channel:
        outbox = Outbox()
        for message in messages:
            outbox.put(message)
        metadata = [(HELLO_KEY, hello)] if hello is not None else []
        stream = channel.stream_stream(f"/{SERVICE}/{method}", identity, identity)
        call = stream(iter(outbox), metadata=metadata, timeout=SECS)
        with contextlib.suppress(grpc.RpcError):
            for _ in call:
                pass
        outbox.close()
        return call.code(), call.details()


def hello_of(host, worker=1, **other):
    fields = {"version": 1, "worker": worker, "ps": 0, "ps_hosts": [host]}
    return Hello(**fields | {"worker_hosts": WORKERS} | other).SerializeToString()


@pytest.mark.parametrize("servers", [1, 3])
def test_operations_of_many_pieces_are_joined_over_several_ps(servers):
    rng = np.random.default_rng(0)
    contents = [rng.standard_normal(PIECE_BYTES).astype("<f4") for _ in WORKERS]  # 4 pieces
    with serving(servers) as (_, hosts), joined(hosts) as clients:
        for step in (5, 6):
            for result in run(clients, contents, f"sum {step}", step=step):
                np.testing.assert_array_equal(result.view("<f4"), contents[0] + contents[1])


def test_law_7_the_bytes_counted_are_2_bits_up_and_ceil_log2_of_2n_plus_1_down(monkeypatch):
    counted = {"up": 0, "down": 0}
    take, deliver = Server._take, Server._deliver

    def count_up(self, worker, outbox, message):
        header, _ = split_frame(message)
        counted["up"] += len(message) if not header.HasField("declared") else 0
        return take(self, worker, outbox, message)

    def count_down(self, worker, frame):
        counted["down"] += len(frame)
        return deliver(self, worker, frame)

    monkeypatch.setattr(Server, "_take", count_up)
    monkeypatch.setattr(Server, "_deliver", count_down)
    values = 20_000_000
    codes = np.zeros(2 * values // 32, "<u4")
    with serving(2) as (_, hosts), joined(hosts) as clients:
        run(clients, [codes, codes], kind=Kind.CODES)
    bits = {way: 8 * counted[way] / values / len(WORKERS) for way in ("up", "down")}
    assert bits == {"up": pytest.approx(2, rel=1e-4), "down": pytest.approx(3, rel=1e-4)}
    assert plane_count(len(WORKERS)) == 3


def test_workers_that_are_done_end_the_ps():
    with serving(2) as (servers, hosts), joined(hosts) as clients:
        waiting = [threading.Thread(target=s.attendance.wait, daemon=True) for s in servers]
        for thread in waiting:
            thread.start()
        clients[0].close(is_done=True)
        assert all(thread.is_alive() for thread in waiting)
        clients[1].close(is_done=True)
        for thread in waiting:
            thread.join(SECS)
        assert not any(thread.is_alive() for thread in waiting)
        assert [server.attendance.lost for server in servers] == ["", ""]


def test_a_lost_worker_ends_the_ps_with_its_name():
    with serving() as ((server,), hosts), joined(hosts) as clients:
        clients[1].close(is_done=False)
        server.attendance.wait()
        assert server.attendance.lost == "worker 1 (two:2) died: its stream ended"


def test_a_lost_ps_is_named():
    said = queue.Queue()
    with serving(2) as (servers, hosts), joined(hosts) as clients:
        cancelled = threading.Event()
        clients[0].declare("a", Kind.FLOATS, 1, 1, lambda content: None, cancelled.set)
        clients[0].watch(said.put)
        servers[1].close()
        assert said.get(timeout=SECS).startswith(f"ps 1 ({hosts[1]}) died or cannot be reached: ")
        assert cancelled.wait(SECS)


def test_a_worker_who_comes_before_its_ps_waits_for_it():
    hosts = free_hosts(1)
    made = queue.Queue()
    early = threading.Thread(target=lambda: made.put(Client(hosts, ["one:1"], 0, SECS)))
    early.start()
    with serving(at=hosts, workers=["one:1"]):
        client = made.get(timeout=SECS)
        client.meeting.wait_for_all(SECS)
        client.close(is_done=True)


def test_law_10_a_ps_that_cannot_be_reached_is_named():
    (host,) = free_hosts(1)
    with pytest.raises(MembershipError, match=rf"ps 0 \({host}\) cannot be reached within 1 s: "):
        Client([host], WORKERS, 0, 1.0)


def test_law_10_a_port_that_is_taken_is_named():
    with serving() as (_, hosts), pytest.raises(PortError, match=f"{hosts[0]} cannot be listened"):
        Server(0, hosts, WORKERS, lambda operation, parts: parts[0], SECS).start(hosts[0])


@pytest.mark.parametrize("method", ["Exchange", "Meet"])
@pytest.mark.parametrize(
    ("hello", "text"),
    [
        (lambda host: None, "it does not say who it is"),
        (lambda host: os.urandom(200), "it does not say who it is|its version|its ps hosts"),
        (lambda host: hello_of(host, version=9), "its version is 9; allowed is 1"),
        (lambda host: hello_of(host, worker=2), "it says to be worker 2 of 2"),
        (lambda host: hello_of(host, worker=1 << 31), "it says to be worker 2147483648 of 2"),
        (lambda host: hello_of(host, ps=1), "it wants ps 1; this is ps 0"),
        (lambda host: hello_of(host, worker_hosts=["x:1"]), r"its worker hosts are \['x:1'\], th"),
        (lambda host: hello_of("x:1"), r"its ps hosts are \['x:1'\], those of this ps \["),
        (hello_of, r"worker 1 \(two:2\) is here already"),
    ],
    ids=str,
)
def test_who_does_not_belong_here_is_told_logged_once_and_disturbs_nobody(
    capfd, method, hello, text
):
    with serving() as (_, (host,)), joined([host]) as clients:
        said = hello(host)
        for _ in range(20):
            code, details = stranger(host, said, method)
            assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert re.search(text, details), details
        assert_it_works(clients)
    assert capfd.readouterr().err.count("Refused ") == 1


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (os.urandom(1000), "frame|header|payload|number"),
        (b"", "does not begin with its header"),
        (join_frame(Header(step=1, operation=7), b"x"), "operation 7 was not declared"),
        (
            join_frame(Header(declared=Operation(0, "alien", Kind.MAX, 1, 1, 2).message())),
            "name of operation 0 is alien, that of another worker sum",
        ),
        (
            join_frame(Header(declared=Operation(0, "sum", Kind.FLOATS, 3, 1, 2).message())),
            "items of operation 0 is 3, that of another worker 2",
        ),
    ],
    ids=["random bytes", "nothing", "undeclared", "foreign layout", "other size"],
)
def test_a_worker_that_sends_what_cannot_be_is_told(capfd, message, text):
    with serving() as ((server,), (host,)):
        first = Client([host], WORKERS, 0, SECS)
        first.declare("sum", Kind.FLOATS, 2, 1, lambda content: None, lambda: None)
        deadline = time.monotonic() + SECS
        while not server.rounds.piece_count and time.monotonic() < deadline:
            time.sleep(0.01)
        code, details = stranger(host, hello_of(host), messages=[message])
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert re.search(text, details), details
        assert not first.failure
        assert server.rounds.held_bytes() == 0
        first.close(is_done=True)
    assert capfd.readouterr().err.count("Refused ") == 1


def test_a_message_of_a_huge_length_is_not_read():
    with serving() as ((server,), (host,)):
        huge = bytes(64 << 20)
        code, _ = stranger(host, hello_of(host), messages=[huge])
        assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.FAILED_PRECONDITION)
        assert server.rounds.held_bytes() == 0


def test_replayed_pushes_change_nothing():
    with serving() as ((server,), hosts), joined(hosts) as clients:
        assert_it_works(clients)
        box = queue.Queue()
        index = clients[0].declare("late", Kind.FLOATS, 1, 1, box.put, lambda: None)
        other = clients[1].declare("late", Kind.FLOATS, 1, 1, lambda content: None, lambda: None)
        for value in (1, 5):
            clients[0].push(index, 3, np.float32([value]))
        clients[1].push(other, 3, np.float32([10]))
        assert box.get(timeout=SECS).view("<f4") == [11]
        clients[0].push(index, 3, np.float32([7]))  # of a step that is over: answered again
        assert box.get(timeout=SECS).view("<f4") == [11]
        assert_it_works(clients)
        assert not server.attendance.lost


def test_random_bytes_at_the_port_disturb_nobody():
    with serving() as (_, (host,)), joined([host]) as clients:
        address, port = host.split(":")
        with contextlib.ExitStack() as stack:
            for i in range(30):
                s = stack.enter_context(socket.create_connection((address, int(port)), timeout=5))
                with contextlib.suppress(OSError):
                    s.sendall(os.urandom(1 << (i % 15)))
            silent = [socket.create_connection((address, int(port))) for _ in range(30)]
            assert_it_works(clients)
            for s in silent:
                s.close()


def test_words_between_workers_that_are_not_the_chief_are_refused():
    with serving() as (_, (host,)):
        word = Word(peer=1, text="{}").SerializeToString()
        code, details = stranger(host, hello_of(host), "Meet", messages=[word])
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert details == "a word of worker 1 to worker 1, not the chief"


def make_certificates(folder, ca, name):
    """Files of `name`, at 127.0.0.1, that an authority of another name signed."""

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    if not (folder / f"{ca}.pem").exists():
        files = ("-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-days", "2", "-nodes")
        openssl("req", "-x509", "-newkey", "rsa:2048", *files, "-subj", f"/CN={ca}")
    files = ("-keyout", f"{name}.key", "-out", f"{name}.csr", "-nodes")
    openssl("req", "-newkey", "rsa:2048", *files, "-subj", f"/CN={name}")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2")
    out = ("-out", f"{name}.pem", "-extfile", "names")
    openssl("x509", "-req", "-in", f"{name}.csr", *signed, *out)
    return Tls(*(str(folder / file) for file in (f"{ca}.pem", f"{name}.pem", f"{name}.key")))


def test_who_has_certificates_trains_and_who_has_none_or_others_cannot(tmp_path):
    good = make_certificates(tmp_path, "ours", "ps")
    foreign = make_certificates(tmp_path, "theirs", "stranger")
    mixed = Tls(good.ca, foreign.cert, foreign.key)  # knows the ps, and is not known to it
    with serving(tls=good) as ((server,), (host,)), joined([host], tls=good) as clients:
        for wrong in (None, foreign, mixed):
            with pytest.raises(MembershipError, match="cannot be reached within 1 s"):
                Client([host], WORKERS, 1, 1.0, wrong)
        no_certificate = grpc.ssl_channel_credentials(Path(good.ca).read_bytes())
        code, _ = stranger(host, hello_of(host), credentials=no_certificate)
        assert code == grpc.StatusCode.UNAVAILABLE
        assert_it_works(clients)
        assert not server.attendance.lost


def test_only_loopback_is_this_machine_alone():
    assert is_loopback("127.0.0.1")
    assert is_loopback("localhost")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.0.2.1")
    assert not is_loopback("no such host")
    assert listening_address("127.0.0.1", 5, only_here=True) == "127.0.0.1:5"
    assert listening_address("::1", 5, only_here=True) == "[::1]:5"
    assert listening_address("192.0.2.1", 5, only_here=False) == "192.0.2.1:5"
