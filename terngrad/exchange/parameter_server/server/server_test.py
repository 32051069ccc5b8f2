"""A ps and its clients over real connections: bytes, and faulty or hostile clients."""

import contextlib
import dataclasses
import functools
import os
import queue
import re
import ssl
import threading
import time
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from terngrad.cluster.errors import MembershipError, PortError
from terngrad.connect.certificates import Tls, serial_of
from terngrad.connect.channel import ChannelEnd
from terngrad.connect.introduction import COORDINATION, EXCHANGE, MAGIC, VERSION
from terngrad.connect.tls import TlsContexts
from terngrad.coordination import groups
from terngrad.coordination.coordinator import Coordinator
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.operations import PIECE_BYTES, Kind, Operation
from terngrad.exchange.parameter_server.server.arithmetic import PackedArithmetic
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.exchange.parameter_server.server.service import Service
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.ops.packing import ReferencePacking
from terngrad.service.messages import (
    Header,
    Order,
    Report,
    View,
    join_frame,
    split_frame,
)
from terngrad.testing.addresses import free_addresses
from terngrad.testing.certificates import make_certificates
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import wait_until
from terngrad.testing.ps_clients import WORKERS, admitted, call_ps, config_of, hello_of

SECS = HANG_SECS
RULES = Rules(2, False, SECS)
ALL_HOSTS = ("IP:127.0.0.1", "DNS:one", "DNS:two")


@contextlib.contextmanager
def serving(count=1, tls=None, workers=WORKERS, needed=None):
    """Yields servers and their addresses."""
    hosts = free_addresses(count)
    rules = Rules(needed or len(workers), False, SECS)
    arithmetic = PackedArithmetic(ReferencePacking())
    configs = [config_of(hosts, i, SECS, tls, workers) for i in range(count)]
    servers = [Server(config, arithmetic, rules) for config in configs]
    for server, host in zip(servers, hosts, strict=True):
        server.start(host)
    try:
        yield servers, hosts
    finally:
        for server in servers:
            server.close()


@contextlib.contextmanager
def joined(hosts, workers=WORKERS, tls=None):
    """Yields a client of each worker; all are in one view."""
    clients = [Client(config_of(hosts, rank, SECS, tls, workers)) for rank in range(len(workers))]
    try:
        report_states(clients)
        yield clients
    finally:
        for client in clients:
            client.close(is_done=False)


def report_states(clients, steps=0, *, is_live=False):
    """Lets all clients report their states; returns the view that each one receives."""
    with futures.ThreadPoolExecutor(len(clients)) as pool:
        views = [pool.submit(c.coordination.next_view, steps, is_live=is_live) for c in clients]
        return [view.result(SECS) for view in views]


class Operations:
    """An operation of some clients, and its results."""

    def __init__(self, clients, name, kind, items, packing=None):
        self.clients = clients
        self.results = [queue.Queue() for _ in clients]
        self.cancelled = threading.Event()
        self.indices = [
            c.declare(
                Operation(name, kind, items, 1, c.size),
                lambda *result, box=box: box.put(result),
                self.cancelled.set,
                packing or ReferencePacking(),
            )
            for c, box in zip(clients, self.results, strict=True)
        ]

    def push(self, client, step, content):
        self.clients[client].steps.push(self.indices[client], step, content)

    def take(self, client):
        result, self.workers, self.lacks_own, self.octets = self.results[client].get(timeout=SECS)
        return result


def run(clients, contents, name, step=0):
    """Runs a sum of floats; returns the result that each client receives."""
    items = contents[0].nbytes // Operation(name, Kind.FLOATS, 0, 1, 1).pushed_bytes
    operations = Operations(clients, name, Kind.FLOATS, items)
    for i, content in enumerate(contents):
        operations.push(i, step, content)
    return [operations.take(i) for i in range(len(clients))]


def assert_it_works(clients):
    name = f"check {time.monotonic()}"
    for result in run(clients, [np.float32([1, 2]), np.float32([3, 4])], name):
        np.testing.assert_array_equal(result.view("<f4"), [4, 6])


@pytest.mark.parametrize("servers", [1, 3])
def test_several_ps_compute_operations_of_many_pieces(servers):
    rng = np.random.default_rng(0)
    contents = [rng.standard_normal(PIECE_BYTES).astype("<f4") for _ in WORKERS]  # 4 pieces
    with serving(servers) as (_, hosts), joined(hosts) as clients:
        for step in (5, 6):
            for result in run(clients, contents, f"sum {step}", step=step):
                np.testing.assert_array_equal(result.view("<f4"), contents[0] + contents[1])


@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_law_7_the_bytes_counted_are_those_of_the_payloads_and_at_most_the_planes(
    workers, density, monkeypatch
):
    up, down = [], []  # the threads of the workers' streams append; they could not add to a number
    take, deliver = Service.take, Service._deliver

    def count_up(self, worker, outbox, message):
        up.append(split_frame(message)[1].nbytes)
        return take(self, worker, outbox, message)

    def count_down(self, worker, frame):
        down.append(split_frame(frame)[1].nbytes)
        return deliver(self, worker, frame)

    monkeypatch.setattr(Service, "take", count_up)
    monkeypatch.setattr(Service, "_deliver", count_down)
    items, hosts_of = 100_000, [f"worker{i}:1" for i in range(workers)]
    rng = np.random.default_rng(workers)
    nonzero = np.packbits(rng.random(32 * items) < density).view("<u4")
    words = np.stack([nonzero, nonzero & rng.integers(1 << 32, size=items, dtype="<u4")], axis=1)
    with serving(2, workers=hosts_of) as (_, hosts), joined(hosts, hosts_of) as clients:
        operations = Operations(clients, "sum", Kind.CODES, items)
        reported = np.zeros(2, int)
        for worker in range(workers):
            operations.push(worker, 0, words)
        for worker in range(workers):
            operations.take(worker)
            reported += operations.octets
    whole = Operation("sum", Kind.CODES, items, 1, workers)
    pieces = [words[slice(*whole.piece_items(i))] for i in range(whole.pieces)]
    packing = ReferencePacking()
    sent = sum(packing.pack(p.reshape(-1).view(np.uint8).data, 1).nbytes for p in pieces)
    assert list(reported) == [sum(up), sum(down)]
    assert sum(up) == workers * sent
    assert sum(down) <= workers * items * whole.result_bytes
    saved = sum(down) / (workers * items * whole.result_bytes)
    assert sent < words.nbytes and saved < 1


@pytest.fixture(name="no_grace")
def _no_grace(monkeypatch):
    """Lets a ps end without its workers, which stay."""
    monkeypatch.setattr("terngrad.exchange.parameter_server.server.server.GRACE_SECS", 0.0)


@pytest.mark.usefixtures("no_grace")
@pytest.mark.parametrize("workers", [2, 3])
def test_law_10_a_push_that_is_no_code_ends_the_training_with_its_senders_name(workers):
    """A ps with two workers does not open it: the other worker does."""
    hosts_of = [f"worker{i}:1" for i in range(workers)]
    broken = SimpleNamespace(
        pack=lambda words, largest: memoryview(b"\2" * 16), unpack=ReferencePacking().unpack
    )
    with serving(workers=hosts_of) as ((server,), hosts), joined(hosts, hosts_of) as clients:
        good = Operations(clients[:-1], "sum", Kind.CODES, 100)
        bad = Operations(clients[-1:], "sum", Kind.CODES, 100, packing=broken)
        for worker in range(workers - 1):
            good.push(worker, 0, np.zeros(200, "<u4"))
        bad.push(0, 0, np.zeros(200, "<u4"))
        assert good.cancelled.wait(SECS)
        reason = server.wait()
    cause = "cannot be read: packed begins with 144680345676153346; allowed are 0 to 2"
    if workers == 2:
        where = "sum: piece 0 of the result of step 0, from ps 0 and workers [1]"
        assert reason == f"worker 0 (worker0:1) failed: {where}, {cause}"
    else:
        refused = f"ps 0 ({hosts[0]}) refused this worker: sum: piece 0 {cause}"
        assert reason == f"worker 2 (worker2:1) failed: {refused}"


@pytest.mark.usefixtures("no_grace")
def test_an_error_of_a_ps_ends_the_training_and_is_reported(capfd):
    def fail(operation, parts):
        raise MemoryError("no room")

    broken = SimpleNamespace(open=lambda operation, piece, payload: payload, reduce=fail)
    with serving(2) as (servers, hosts), joined(hosts) as clients:
        servers[1].aggregator._arithmetic = broken  # not of ps 0
        operations = Operations(clients, "sum", Kind.FLOATS, PIECE_BYTES)  # pieces on both
        for worker in (0, 1):
            operations.push(worker, 0, np.zeros(PIECE_BYTES, "<f4"))
        reason = (
            rf"ps 1 \({hosts[1]}\) refused this worker: this ps failed: MemoryError\('no room'\)"
        )
        outcome = servers[0].wait()
        assert re.fullmatch(rf"worker \d \(.*\) failed: {reason}", outcome)
        assert operations.cancelled.wait(SECS)
        wait_until(lambda: all(client.failure for client in clients), "for both to learn it")
    assert "Traceback" in capfd.readouterr().err


def test_a_late_answer_to_an_abandoned_round_does_not_replace_the_current_one():
    with serving() as (_, hosts), joined(hosts) as clients:
        coordination = clients[0].coordination
        with futures.ThreadPoolExecutor() as pool:
            asked = pool.submit(coordination.gather, "configuration", b"a", 7)
            while "configuration" not in coordination._own_values:
                time.sleep(0.01)
            with coordination.changed:  # both arrive before the waiting thread wakes up
                for round_ in (7, 6):
                    order = Order()
                    order.values.name, order.values.round = "configuration", round_
                    order.values.workers.append(0)
                    order.values.contents.append(b"a")
                    coordination.handle(order.SerializeToString())
            assert asked.result(SECS) == {0: b"a"}


@pytest.mark.usefixtures("no_grace")
def test_a_stopped_ps_reports_no_worker_as_dead(capsys, monkeypatch):
    monkeypatch.setattr("terngrad.connect.streams._LEAVE_SECS", 0.0)  # nobody leaves
    monkeypatch.setattr("terngrad.exchange.parameter_server.worker.client.END_SECS", 0.0)
    with serving() as ((server,), hosts), joined(hosts):
        server.stop()
        assert server.wait() is None
        server.close()
        assert "died" not in capsys.readouterr().out


def test_law_10_a_ps_that_cannot_be_reached_is_named():
    (host,) = free_addresses(1)
    with pytest.raises(MembershipError, match=rf"ps 0 \({host}\) cannot be reached within 1 s: "):
        Client(config_of([host], 0, 1.0))


def test_law_10_a_port_that_is_taken_is_named():
    with serving() as (_, hosts), pytest.raises(PortError, match=f"cannot listen at {hosts[0]}"):
        Server(config_of(hosts, 0), lambda operation, parts: parts[0], RULES).start(hosts[0])


@pytest.mark.parametrize("purpose", [EXCHANGE, COORDINATION])
@pytest.mark.parametrize(
    ("hello", "text"),
    [
        (lambda hello: MAGIC + bytes(4), "it did not introduce itself"),
        (lambda hello: b"GET / HTTP/1.0\r\n\r\n", "it did not introduce itself"),
        (lambda hello: os.urandom(200), "it did not introduce itself"),
        (lambda hello: MAGIC + b"\x00\x00\x01\x00" + b"[" * 65536, "it did not introduce itself"),
        (lambda hello: hello(worker=-1), "it did not introduce itself"),
        (lambda hello: hello(ps_hosts=[1]), "it did not introduce itself"),
        (
            lambda hello: hello(version=VERSION - 1),
            f"its version is {VERSION - 1}; allowed is {VERSION}",
        ),
        (lambda hello: hello(worker=2), "its worker index is 2; allowed are 0 to 1"),
        (lambda hello: hello(callee=1), "it wants to join ps 1; this is ps 0"),
        (lambda hello: hello(worker_hosts=["x:1"]), "^its worker hosts differ from"),
        (lambda hello: hello(ps_hosts=["x:1"]), "^its ps hosts differ from those of this ps, "),
        (
            lambda hello: hello(purpose="Update"),
            "another --cross_replica_sync, or asynchronous, than",
        ),
        (lambda hello: hello(), r"worker 1 \(two:2\) has already joined"),
    ],
)
def test_a_rejected_caller_gets_the_reason_and_is_logged_once(capfd, purpose, hello, text):
    with serving() as (_, (host,)), joined([host]) as clients:
        said = hello(functools.partial(hello_of, host, purpose=purpose))
        for _ in range(20):
            end, details = call_ps(host, said)
            assert end in (ChannelEnd.REFUSED, ChannelEnd.CLOSED)
        assert re.search(text, details), details
        assert_it_works(clients)
    said = capfd.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in said if "Refused" in line] == ["Refused", "Left"]


def test_differences_are_logged_but_not_sent_to_unknown_callers(capfd):
    with serving() as (_, (host,)):
        _, details = call_ps(host, hello_of(host, ps_hosts=["x:1"]))
        assert host not in details and "x:1" not in details
        _, details = call_ps(host, hello_of(host, rules="fewer"))
        assert details == "its flags differ from those of this ps, whose log says how"
    said = capfd.readouterr().out
    assert f"its ps hosts are ['x:1']; this ps has ['{host}']" in said
    assert "its flags are fewer; this ps has num_replicas_to_aggregate=2" in said


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (os.urandom(1000), "frame|header|payload|number"),
        (b"", "does not begin with its header"),
        (join_frame(Header(step=1, operation=7), b"x"), "operation 7 was not declared"),
        (
            join_frame(Header(declared=Operation("sum", Kind.MAX, 2, 1, 2).message(0))),
            "kind of sum is 1; another worker has 3",
        ),
    ],
    ids=["random bytes", "nothing", "undeclared", "other kind"],
)
def test_a_worker_that_sends_an_invalid_message_gets_the_reason(capfd, message, text):
    with serving() as ((server,), (host,)):
        first = Client(config_of([host], 0))
        Operations([first], "sum", Kind.FLOATS, 2)
        wait_until(lambda: server.aggregator.piece_count, "the first worker's operation")
        end, details = call_ps(host, hello_of(host), messages=[message])
        assert end is ChannelEnd.REFUSED
        assert re.search(text, details), details
        assert not first.failure
        assert server.aggregator.memory_bytes == 0
        first.close(is_done=True)
    assert capfd.readouterr().out.count("Refused ") == 1


def test_a_huge_message_is_not_read():
    with serving() as ((server,), (host,)):
        huge = bytes(64 << 20)
        end, why = call_ps(host, hello_of(host), messages=[huge])
        assert end is ChannelEnd.REFUSED and why.startswith(
            f"a message has {64 << 20} bytes; allowed"
        )
        assert server.aggregator.memory_bytes == 0


def test_replayed_pushes_change_nothing():
    with serving() as ((server,), hosts), joined(hosts) as clients:
        assert_it_works(clients)
        operations = Operations(clients, "late", Kind.FLOATS, 1)
        for value in (1, 5):
            operations.push(0, 3, np.float32([value]))
        operations.push(1, 3, np.float32([10]))
        assert operations.take(0).view("<f4") == [11]
        operations.push(0, 3, np.float32([7]))  # of a finished step, whose result is not kept
        assert operations.take(0).view("<f4") == [0]
        assert clients[0].steps.interrupted and not clients[1].steps.interrupted
        assert server.registry.outcome is None


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (os.urandom(1000), "."),
        (
            Report(value={"name": "a" * 300}).SerializeToString(),
            "its name has 300 characters",
        ),
    ],
    ids=["noise", "name"],
)
def test_invalid_reports_are_refused(message, text):
    with serving() as (_, (host,)):
        hello = hello_of(host, purpose=COORDINATION)
        end, details = call_ps(host, hello, messages=[message])
        assert end is ChannelEnd.REFUSED
        assert re.search(text, details), details


def test_a_worker_that_does_not_read_orders_loses_its_stream_and_may_connect_again():
    with serving() as ((server,), (host,)):
        for _ in range(2):
            channel = admitted(host, hello_of(host, purpose=COORDINATION))
            deadline = time.monotonic() + SECS / 2
            while server._service._coordination and time.monotonic() < deadline:
                order = Order(end="x" * 60_000)  # some go into the system's buffers
                server._service._order(1, order)
            assert not server._service._coordination
            channel.cut()


def test_a_worker_that_does_not_read_results_is_refused_and_nothing_is_kept(capfd, monkeypatch):
    monkeypatch.setattr(Coordinator, "takes_pushes", lambda *arguments: True)
    operation = Operation("sum", Kind.FLOATS, PIECE_BYTES // 4, 1, 2)
    header = Header(view=1, contributors=groups.pack([1]))
    entry = Header(enters=True, view=1, contributors=groups.pack([0, 1]))
    part = join_frame(header, bytes(operation.push_size(0)))
    with serving(needed=1) as ((server,), (host,)):
        channel = admitted(host, hello_of(host))
        channel.send(join_frame(Header(declared=operation.message(0))))
        channel.send(join_frame(entry))
        with contextlib.suppress(OSError):
            for _ in range(50):  # each one is answered
                channel.send(part)
        wait_until(lambda: not server.registry.present, "the end of its stream")
        assert server.aggregator.memory_bytes == 0
        channel.cut()
    assert "the worker does not read its results" in capfd.readouterr().out


def test_a_state_from_a_worker_that_is_not_the_donor_is_not_forwarded():
    with serving() as (_, hosts), joined(hosts) as clients:
        clients[1].coordination.give_state(View(number=1), [memoryview(b"evil")])
        assert_it_works(clients)
        assert not clients[0].steps.interrupted


@pytest.mark.slow
def test_only_workers_with_certificates_of_the_authority_can_train(tmp_path):
    good = make_certificates(tmp_path, "ours", "ps", ALL_HOSTS)
    foreign = make_certificates(tmp_path, "theirs", "stranger")
    mixed = Tls(good.ca, foreign.cert, foreign.key)  # trusts the ps, but the ps does not trust it
    with serving(tls=good) as ((server,), (host,)), joined([host], tls=good) as clients:
        for wrong in (foreign, mixed):
            with pytest.raises(MembershipError, match=r"cannot be reached within 1 s: .*cert"):
                Client(config_of([host], 1, 1.0, wrong))
        with pytest.raises(MembershipError, match="all processes need certificates, or none"):
            Client(config_of([host], 1, 1.0))
        no_certificate = ssl.create_default_context(cafile=good.ca)
        no_certificate.check_hostname = False
        end, _ = call_ps(host, hello_of(host), no_certificate)
        assert end is ChannelEnd.LOST
        assert_it_works(clients)
        assert server.registry.outcome is None


@pytest.mark.slow
def test_a_certificate_is_for_the_workers_of_its_hosts_only(tmp_path, capfd):
    of_ps = make_certificates(tmp_path, "ours", "ps", ALL_HOSTS)
    of_one = make_certificates(tmp_path, "ours", "one", ["DNS:one"])
    with serving(tls=of_ps) as (_, (host,)):
        end, why = call_ps(host, hello_of(host, 1), TlsContexts(of_one).client)
    assert end is ChannelEnd.REFUSED
    assert why == "worker 1 (two:2) was refused: its certificate is for one, not two"
    assert capfd.readouterr().out.count(f"Refused 127.0.0.1: {why}") == 1


@pytest.mark.slow
def test_a_revoked_certificate_ends_streams_and_opens_none(tmp_path, capfd):
    good = make_certificates(tmp_path, "ours", "all", ALL_HOSTS)
    denied = tmp_path / "denied.txt"
    denied.write_text("# nobody yet\n")
    with serving(tls=dataclasses.replace(good, deny=str(denied))) as ((server,), (host,)):
        with joined([host], tls=good) as clients:
            assert_it_works(clients)
            pem = Path(good.cert).read_text()
            serial = f"{serial_of(ssl.PEM_cert_to_DER_cert(pem)):X}"
            denied.write_text("not a number\n")
            await_line(capfd, "--tls_deny cannot be read, its last content counts: 'not a number'")
            assert server.registry.present == 2
            denied.write_text(f"{serial}  # of everybody\n")
            wait_until(lambda: not server.registry.present, "the end of all streams")
        end, why = call_ps(host, hello_of(host), TlsContexts(good).client)
    assert end is ChannelEnd.REFUSED
    assert why == f"worker 1 (two:2) was refused: its certificate {serial} was revoked (--tls_deny)"


def await_line(capfd, text):
    """Waits for a text in what the process prints."""
    said = []
    wait_until(lambda: said.extend(capfd.readouterr()) or text in "".join(said), text)
