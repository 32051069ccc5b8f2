"""A ps and its clients over real connections: bytes, and faulty or hostile clients."""

import contextlib
import dataclasses
import functools
import os
import queue
import re
import socket
import ssl
import threading
import time
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from terngrad.cluster.channel import MembershipError, PortError
from terngrad.connect import introduction
from terngrad.connect.certificates import Tls, serial_of
from terngrad.connect.channel import End
from terngrad.connect.introduction import MAGIC, frame
from terngrad.connect.tls import Members
from terngrad.coordination import groups
from terngrad.coordination.client import InterruptionError
from terngrad.coordination.coordinator import Coordinator
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.operations import PIECE_BYTES, Kind, Operation
from terngrad.exchange.parameter_server.server.aggregator import Aggregator
from terngrad.exchange.parameter_server.server.reduction import Reduction
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
from terngrad.testing.strangers import WORKERS, admitted, hello_of, stranger

SECS = HANG_SECS
RULES = Rules(2, False, SECS)
ALL_HOSTS = ("IP:127.0.0.1", "DNS:one", "DNS:two")


@contextlib.contextmanager
def serving(count=1, tls=None, workers=WORKERS, at=None, needed=None, secs=SECS):
    """Yields servers and their addresses."""
    hosts = at or free_addresses(count)
    rules = Rules(needed or len(workers), False, secs)
    reduction = Reduction(ReferencePacking())
    servers = [Server(i, hosts, workers, reduction, rules, tls) for i in range(count)]
    for server, host in zip(servers, hosts, strict=True):
        server.start(host)
    try:
        yield servers, hosts
    finally:
        for server in servers:
            server.close()


@contextlib.contextmanager
def joined(hosts, workers=WORKERS, tls=None, secs=SECS):
    """Yields a client of each worker; all are in one view."""
    clients = [Client(hosts, workers, rank, secs, tls) for rank in range(len(workers))]
    try:
        stand(clients)
        yield clients
    finally:
        for client in clients:
            client.close(is_done=False)


def stand(clients, steps=0, *, is_live=False):
    """Lets all clients report their standings; returns the view that each one receives."""
    with futures.ThreadPoolExecutor(len(clients)) as pool:
        views = [pool.submit(c.meeting.next_view, steps, is_live=is_live) for c in clients]
        return [view.result(SECS) for view in views]


class Operations:
    """An operation of some clients, and its results."""

    def __init__(self, clients, name, kind, items, local_nodes=1, packing=None):
        self.clients = clients
        self.results = [queue.Queue() for _ in clients]
        self.cancelled = threading.Event()
        self.indices = [
            c.declare(
                Operation(name, kind, items, local_nodes, c.size),
                lambda *result, box=box: box.put(result),
                self.cancelled.set,
                packing or ReferencePacking(),
            )
            for c, box in zip(clients, self.results, strict=True)
        ]

    def push(self, client, step, content):
        self.clients[client].push(self.indices[client], step, content)

    def take(self, client):
        result, self.workers, self.lacks_own, self.octets = self.results[client].get(timeout=SECS)
        return result


def run(clients, contents, name="sum", kind=Kind.FLOATS, local_nodes=1, step=0):
    """Runs an operation; returns the result that each client receives."""
    items = contents[0].nbytes // Operation(name, kind, 0, local_nodes, 1).pushed_bytes
    operations = Operations(clients, name, kind, items, local_nodes)
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
    counted = {"up": 0, "down": 0}
    take, deliver = Service.take, Service._deliver

    def count_up(self, worker, outbox, message):
        counted["up"] += split_frame(message)[1].nbytes
        return take(self, worker, outbox, message)

    def count_down(self, worker, frame):
        counted["down"] += split_frame(frame)[1].nbytes
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
    assert list(reported) == [counted["up"], counted["down"]]
    assert counted["up"] == workers * sent
    assert counted["down"] <= workers * items * whole.result_bytes
    saved = counted["down"] / (workers * items * whole.result_bytes)
    assert (sent < words.nbytes) == (saved < 1) == (density < 1)


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
        told = server.wait()
    cause = "cannot be read: packed begins with 144680345676153346; allowed are 0 and 1"
    if workers == 2:
        where = "sum: piece 0 of the result of step 0, from ps 0 and workers [1]"
        assert told == f"worker 0 (worker0:1) failed: {where}, {cause}"
    else:
        refused = f"ps 0 ({hosts[0]}) refused this worker: sum: piece 0 {cause}"
        assert told == f"worker 2 (worker2:1) failed: {refused}"


def test_workers_that_are_done_end_the_ps():
    with (
        serving(2) as (servers, hosts),
        joined(hosts) as clients,
        futures.ThreadPoolExecutor() as p,
    ):
        waiting = [p.submit(server.wait) for server in servers]
        for client in clients:
            assert not any(thread.done() for thread in waiting)
            client.meeting.leave()
            client.close(is_done=True)
        assert [thread.result(SECS) for thread in waiting] == ["", ""]


@pytest.mark.slow
def test_a_lost_worker_ends_the_others_and_the_ps_and_is_named():
    secs = 2.0
    said = queue.Queue()
    with serving(2, secs=secs) as (servers, hosts), joined(hosts, secs=secs) as clients:
        clients[0].watch(said.put)
        clients[1].close(is_done=False)
        died = "worker 1 (two:2) died: its stream ended"
        assert servers[0].wait() == f"{died}, and did not come back within 2 s"
        assert said.get(timeout=SECS) == f"{died}, and did not come back within 2 s"
        clients[0].close(is_done=True, why="the other died")
        assert servers[1].wait() == "the other died"


@pytest.mark.slow
def test_an_error_of_a_ps_ends_the_training_and_is_reported(capfd):
    def fail(operation, parts):
        raise MemoryError("no room")

    broken = SimpleNamespace(open=lambda operation, piece, payload: payload, reduce=fail)
    with serving(2) as (servers, hosts), joined(hosts) as clients:
        servers[1].aggregator._arithmetic = broken  # not of ps 0
        operations = Operations(clients, "sum", Kind.FLOATS, PIECE_BYTES)  # pieces on both
        for worker in (0, 1):
            operations.push(worker, 0, np.zeros(PIECE_BYTES, "<f4"))
        told = rf"ps 1 \({hosts[1]}\) refused this worker: this ps failed: MemoryError\('no room'\)"
        outcome = servers[0].wait()
        assert re.fullmatch(rf"worker \d \(.*\) failed: {told}", outcome)
        assert operations.cancelled.wait(SECS)
        assert all(client.failure for client in clients)
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.usefixtures("no_grace")
def test_a_result_of_other_workers_than_the_contributors_is_refused():
    with serving() as ((server,), hosts), joined(hosts) as clients:
        operations = Operations(clients, "sum", Kind.FLOATS, 1)
        operations.push(0, 3, np.float32([1]))
        header = Header(step=3, view=clients[0].steps.view.number, contributors=groups.pack([1]))
        clients[0].steps.take(0, join_frame(header, bytes(4)))  # as if worker 1 made the step alone
        assert operations.cancelled.wait(SECS)
        why = "sum: the result of step 3 has workers [1]; allowed are [0, 1]"
        assert clients[0].failure == why
        assert server.wait() == f"worker 0 (one:1) failed: {why}"


@pytest.mark.slow
def test_a_ps_that_comes_back_with_other_rules_is_named():
    said = queue.Queue()
    rules = str(RULES)
    with serving(2) as (servers, hosts):
        clients = [Client(hosts, WORKERS, i, SECS, rules=rules) for i in (0, 1)]
        stand(clients)
        clients[0].watch(said.put)
        servers[1].close()
        other = Rules(2, True, SECS)
        again = Server(1, hosts, WORKERS, Reduction(ReferencePacking()), other)
        again.start(hosts[1])
        flags = "its flags differ from those of this ps, whose log says how"  # there is no secret
        told = f"ps 1 ({hosts[1]}) refused this worker: {flags}"
        assert said.get(timeout=SECS).endswith(told)  # or the other worker reports it first
        again.close()
        for client in clients:
            client.close(is_done=False)


def test_a_late_answer_to_an_abandoned_round_does_not_replace_the_current_one():
    with serving() as (_, hosts), joined(hosts) as clients:
        meeting = clients[0].meeting
        with futures.ThreadPoolExecutor() as pool:
            asked = pool.submit(meeting.gather, "facts", b"a", 7)
            while "facts" not in meeting._own_values:
                time.sleep(0.01)
            with meeting.changed:  # both arrive before the waiting thread wakes up
                for round_ in (7, 6):
                    order = Order()
                    order.values.name, order.values.round = "facts", round_
                    order.values.workers.append(0)
                    order.values.contents.append(b"a")
                    meeting.take(order.SerializeToString())
            assert asked.result(SECS) == {0: b"a"}


@pytest.mark.slow
def test_a_stopped_ps_reports_no_worker_as_dead(capsys):
    with serving() as ((server,), hosts), joined(hosts):
        server.stop()
        assert server.wait() is None
        server.close()
        assert "died" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_ps_that_lost_all_workers_ends():
    with serving(2, secs=5.0) as (servers, hosts):
        with joined(hosts, secs=5.0):
            pass
        assert "did not come back within 5 s" in servers[0].wait()
        assert re.fullmatch(r"worker \d \(.*\) died: its stream ended", servers[1].wait())


@pytest.mark.slow
def test_a_ps_that_does_not_come_back_is_named():
    said = queue.Queue()
    with serving(2) as (servers, hosts), joined(hosts, secs=5.0) as clients:
        operations = Operations(clients, "a", Kind.FLOATS, 1)
        clients[0].watch(said.put)
        servers[1].close()
        assert re.match(
            rf"ps 1 \({hosts[1]}\) .*; it did not come back within 5 s: ", said.get(timeout=SECS)
        )
        assert operations.cancelled.wait(SECS)


@pytest.mark.slow
def test_a_step_is_abandoned_when_a_ps_is_lost_and_repeated_when_it_is_back():
    with serving(2) as (servers, hosts), joined(hosts) as clients:
        operations = Operations(clients, "sum", Kind.FLOATS, PIECE_BYTES)  # pieces on both
        content = np.arange(PIECE_BYTES, dtype="<f4")
        operations.push(0, 5, content)
        servers[1].close()
        assert not operations.take(0).any()
        assert not any(client.commit(5) for client in clients[:1])
        again = Server(1, hosts, WORKERS, Reduction(ReferencePacking()), RULES)
        again.start(hosts[1])
        for client in clients:
            client.wait_for_servers()
        views = stand(clients, 5, is_live=True)
        assert views[0] == views[1]
        assert not groups.unpack(views[0].receivers)
        for i in range(2):
            operations.push(i, 5, content)
        for i, client in enumerate(clients):
            np.testing.assert_array_equal(operations.take(i).view("<f4"), 2 * content)
            assert client.commit(5)
        again.close()


def test_a_worker_that_comes_back_gets_the_state_of_a_live_one_and_repeats_the_step():
    with serving() as (_, hosts), joined(hosts) as clients:
        operations = Operations(clients, "sum", Kind.FLOATS, 2)
        operations.push(0, 3, np.float32([1, 2]))
        clients[1].close(is_done=False)
        assert not clients[0].interrupted  # the step waits
        clients[1] = Client(hosts, WORKERS, 1, SECS)
        with futures.ThreadPoolExecutor() as pool:
            back = pool.submit(clients[1].meeting.next_view, 0, is_live=False)
            assert not operations.take(0).any()  # the step is abandoned
            assert not clients[0].commit(3)
            view = clients[0].meeting.next_view(3, is_live=True)
            assert back.result(SECS) == view
        assert (view.donor, groups.unpack(view.receivers), view.steps) == (0, (1,), 3)
        state = [memoryview(bytes(range(200)) * 10_000), memoryview(b""), memoryview(b"end")]
        clients[0].meeting.give_state(view, state)
        assert clients[1].meeting.take_state() == b"".join(state)
        for client in clients:
            assert not client.interrupted


def test_a_receiver_stops_waiting_when_the_donor_is_lost():
    with serving() as (_, hosts):
        clients = [Client(hosts, WORKERS, rank, SECS) for rank in range(2)]
        stand(clients)
        with futures.ThreadPoolExecutor() as pool:
            taken = pool.submit(clients[1].meeting.take_state)
            clients[0].close(is_done=False)
            clients[0] = Client(hosts, WORKERS, 0, SECS)
            pool.submit(clients[0].meeting.next_view, 0, is_live=False)
            with pytest.raises(InterruptionError):
                taken.result(SECS)
            view = clients[1].meeting.next_view(0, is_live=False)
        assert groups.unpack(view.receivers) == (1,)
        for client in clients:
            client.close(is_done=False)


def test_the_last_of_several_workers_is_dropped_and_gets_the_step_of_the_others():
    workers = ["one:1", "two:2", "three:3"]
    with serving(2, workers=workers, needed=2) as (servers, hosts), joined(hosts, workers) as all_3:
        operations = Operations(all_3, "sum", Kind.FLOATS, 2)
        assert all(client.has_backup_workers for client in all_3)
        for step in range(3):
            for i in (2, 0):
                operations.push(i, step, np.float32([i, 1]))
            for i in (2, 0):
                np.testing.assert_array_equal(operations.take(i).view("<f4"), [2, 2])
                assert operations.workers == 2
                assert all_3[i].takes_part(step)
                assert all_3[i].commit(step)
        for step in range(3):
            deadline = time.monotonic() + SECS
            while not all_3[1].follows(step) and time.monotonic() < deadline:
                time.sleep(0.01)
            operations.push(1, step, np.float32([100, 100]))
            np.testing.assert_array_equal(operations.take(1).view("<f4"), [2, 2])
            assert all_3[1].commit(step)
        assert not servers[0].dropped  # worker 1 computed nothing for finished steps
        for i in (2, 0):
            operations.push(i, 3, np.float32([i, 1]))
        for i in (2, 0):  # so that worker 1 is ready only after the choice
            assert operations.take(i).view("<f4").tolist() == [2, 2]
        operations.push(1, 3, np.float32([1, 1]))
        assert operations.take(1).view("<f4").tolist() == [2, 2]
        assert not all_3[1].takes_part(3)
        deadline = time.monotonic() + SECS
        while not servers[0].dropped and time.monotonic() < deadline:
            time.sleep(0.01)
        assert servers[0].dropped == {1: 1}
        assert not all_3[1].interrupted


def test_a_worker_that_is_too_far_behind_abandons_its_step():
    with serving(needed=1) as (_, hosts), joined(hosts) as clients:
        operations = Operations(clients, "sum", Kind.FLOATS, 1)
        for step in range(40):
            operations.push(0, step, np.float32([step]))
            assert operations.take(0).view("<f4") == [step]
            assert clients[0].commit(step)
        operations.push(1, 0, np.float32([7]))
        assert operations.take(1).view("<f4") == [0]
        assert not clients[1].commit(0)
        with futures.ThreadPoolExecutor() as pool:
            behind = pool.submit(clients[1].meeting.next_view, 0, is_live=True)
            deadline = time.monotonic() + SECS
            while not clients[0].interrupted and time.monotonic() < deadline:
                time.sleep(0.01)
            view = clients[0].meeting.next_view(40, is_live=True)
            assert behind.result(SECS) == view
        assert (view.steps, view.donor, groups.unpack(view.receivers)) == (40, 0, (1,))


@pytest.mark.slow
def test_a_worker_abandons_a_step_whose_contributors_are_forgotten():
    with serving(needed=1) as (_, hosts), joined(hosts) as clients:
        operations = Operations(clients, "sum", Kind.FLOATS, 1)
        for step in range(1030):
            operations.push(0, step, np.float32([step]))
            operations.take(0)
            assert clients[0].commit(step)
        operations.push(1, 0, np.float32([7]))
        assert operations.take(1).view("<f4") == [0]
        assert not clients[1].commit(0)


def test_values_are_gathered():
    with serving() as (_, hosts), joined(hosts) as clients, futures.ThreadPoolExecutor() as pool:
        given = [pool.submit(c.meeting.gather, "name", bytes([c.rank])) for c in clients]
        assert [g.result(SECS) for g in given] == [{0: b"\0", 1: b"\1"}] * 2


def test_each_round_of_values_waits_for_all_workers():
    with serving() as (_, hosts), joined(hosts) as clients, futures.ThreadPoolExecutor() as pool:
        for round_ in range(5):
            first = pool.submit(clients[0].meeting.gather, "name", bytes([round_]), round_)
            time.sleep(0.05)
            assert not first.done()
            clients[1].meeting.gather("name", bytes([9]), round_)
            assert first.result(SECS) == {0: bytes([round_]), 1: bytes([9])}


def test_a_worker_that_starts_before_its_ps_waits_for_it():
    hosts = free_addresses(1)
    made = queue.Queue()
    early = threading.Thread(target=lambda: made.put(Client(hosts, ["one:1"], 0, SECS)))
    early.start()
    with serving(at=hosts, workers=["one:1"]):
        client = made.get(timeout=SECS)
        assert client.meeting.next_view(4, is_live=False).steps == 4
        client.close(is_done=True)


def test_law_10_a_ps_that_cannot_be_reached_is_named():
    (host,) = free_addresses(1)
    with pytest.raises(MembershipError, match=rf"ps 0 \({host}\) cannot be reached within 1 s: "):
        Client([host], WORKERS, 0, 1.0)


def test_law_10_a_port_that_is_taken_is_named():
    with serving() as (_, hosts), pytest.raises(PortError, match=f"cannot listen at {hosts[0]}"):
        Server(0, hosts, WORKERS, lambda operation, parts: parts[0], RULES).start(hosts[0])


@pytest.mark.parametrize("method", ["Exchange", "Meet"])
@pytest.mark.parametrize(
    ("hello", "text"),
    [
        (lambda hello: MAGIC + bytes(4), "it did not introduce itself"),
        (lambda hello: MAGIC + frame([1]), "it did not introduce itself"),
        (lambda hello: b"GET / HTTP/1.0\r\n\r\n", "it did not introduce itself"),
        (lambda hello: os.urandom(200), "it did not introduce itself"),
        (lambda hello: MAGIC + b"\x00\x00\x01\x00" + b"[" * 65536, "it did not introduce itself"),
        (lambda hello: hello(worker=-1), "it did not introduce itself"),
        (lambda hello: hello(worker=True), "it did not introduce itself"),
        (lambda hello: hello(ps_hosts=[1]), "it did not introduce itself"),
        (lambda hello: hello(version=9), "its version is 9; allowed is 8"),
        (lambda hello: hello(worker=2), "its worker index is 2; allowed are 0 to 1"),
        (lambda hello: hello(worker=1 << 31), "its worker index is 2147483648; allowed"),
        (lambda hello: hello(callee=1), "it wants to join ps 1; this is ps 0"),
        (lambda hello: hello(worker_hosts=["x:1"]), "^its worker hosts differ from"),
        (
            lambda hello: hello(ps_hosts=["x:1"]),
            "^its ps hosts differ from those of this ps, ",
        ),
        (lambda hello: hello(purpose="Update"), "started with another --cross_replica_sync than"),
        (lambda hello: hello(), r"worker 1 \(two:2\) has already joined"),
    ],
)
def test_a_stranger_gets_the_reason_is_logged_once_and_disturbs_no_worker(
    capfd, method, hello, text
):
    with serving() as (_, (host,)), joined([host]) as clients:
        said = hello(functools.partial(hello_of, host, purpose=method))
        for _ in range(20):
            end, details = stranger(host, said)
            assert end in (End.REFUSED, End.ENDED)
        assert re.search(text, details), details
        assert_it_works(clients)
    said = capfd.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in said if "Refused" in line] == ["Refused", "Left"]


def test_what_differs_stands_in_the_log_and_is_told_to_nobody_who_may_be_a_stranger(capfd):
    with serving() as (_, (host,)):
        _, details = stranger(host, hello_of(host, ps_hosts=["x:1"]))
        assert host not in details and "x:1" not in details
        _, details = stranger(host, hello_of(host, rules="fewer"))
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
            join_frame(Header(declared=Operation("sum", Kind.FLOATS, 3, 1, 2).message(0))),
            "items of sum is 3; another worker has 2",
        ),
        (
            join_frame(Header(declared=Operation("sum", Kind.MAX, 2, 1, 2).message(0))),
            "kind of sum is 1; another worker has 3",
        ),
    ],
    ids=["random bytes", "nothing", "undeclared", "foreign layout", "other kind"],
)
def test_a_worker_that_sends_an_invalid_message_gets_the_reason(capfd, message, text):
    with serving() as ((server,), (host,)):
        first = Client([host], WORKERS, 0, SECS)
        Operations([first], "sum", Kind.FLOATS, 2)
        deadline = time.monotonic() + SECS
        while not server.aggregator.piece_count and time.monotonic() < deadline:
            time.sleep(0.01)
        end, details = stranger(host, hello_of(host), messages=[message])
        assert end is End.REFUSED
        assert re.search(text, details), details
        assert not first.failure
        assert server.aggregator.held_bytes == 0
        first.close(is_done=True)
    assert capfd.readouterr().out.count("Refused ") == 1


def test_strangers_do_not_use_up_the_lines_about_members(capfd):
    with serving() as (_, (host,)):
        for version in range(introduction.VERSION + 1, introduction.VERSION + 13):
            stranger(host, hello_of(host, version=version))
        stranger(host, hello_of(host), messages=[join_frame(Header(step=1, operation=7), b"x")])
    said = capfd.readouterr().out
    assert "Left out 2 more lines like this one: Refused 127.0.0.1: its version is" in said
    assert said.count("its version is") == 11 and "operation 7 was not declared" in said


@pytest.mark.slow
@pytest.mark.parametrize("enters", [False, True])
def test_nothing_is_kept_of_pushes_for_a_view_that_nobody_is_in(monkeypatch, enters):
    """At a ps that is not told by ps 0 which view there is."""
    held, push = [], Aggregator.push
    noting = lambda self, *push_: (push(self, *push_), held.append(self.held_bytes))
    content = np.arange(PIECE_BYTES, dtype="<f4")  # pieces on both ps
    operation = Operation("huge", Kind.FLOATS, 64 * PIECE_BYTES // 4, 1, len(WORKERS))
    header = Header(view=1 << 60, contributors=groups.pack([0, 1]))
    entry = Header(enters=True, view=header.view, contributors=header.contributors)
    with serving(2) as (_, hosts), joined(hosts) as clients:
        operations = Operations(clients, "sum", Kind.FLOATS, PIECE_BYTES)
        clients[1].close(is_done=False)
        monkeypatch.setattr(Aggregator, "push", noting)
        messages = [join_frame(Header(declared=operation.message(0)))]
        messages += [join_frame(entry)] * enters
        for header.piece in range(operation.pieces):
            messages.append(join_frame(header, bytes(operation.push_size(header.piece))))
        messages.append(join_frame(Header(bye=True, failed="a liar")))
        hello = hello_of(hosts[1], callee=1, ps_hosts=hosts)
        _, details = stranger(hosts[1], hello, messages=messages)
        assert max(held, default=0) == 0
        assert len(held) == (0 if enters else operation.pieces)
        assert ("contributors [0] are not in view 1152921504606846976" in details) == enters
        clients[1] = Client(hosts, WORKERS, 1, SECS)
        stand(clients)
        again = Operations(clients[1:], "sum", Kind.FLOATS, PIECE_BYTES)
        operations.push(0, 1, content)
        again.push(0, 1, content)
        for result in (operations.take(0), again.take(0)):
            np.testing.assert_array_equal(result.view("<f4"), 2 * content)


def test_a_huge_message_is_not_read():
    with serving() as ((server,), (host,)):
        huge = bytes(64 << 20)
        end, why = stranger(host, hello_of(host), messages=[huge])
        assert end is End.REFUSED and why.startswith(f"a message has {64 << 20} bytes; allowed")
        assert server.aggregator.held_bytes == 0


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
        assert clients[0].interrupted and not clients[1].interrupted
        assert server.attendance.outcome is None


def is_closed_in_time(connection):
    """Returns whether the other end closes a connection; it may send something before."""
    try:
        return all(iter(lambda: connection.recv(1 << 10), b""))
    except TimeoutError:
        return False


@pytest.mark.slow
def test_a_silent_connection_is_closed_and_disturbs_no_worker():
    with serving() as (_, hosts), joined(hosts) as clients:
        address, port = hosts[0].split(":")
        with socket.create_connection((address, int(port)), timeout=SECS / 2) as silent:
            assert is_closed_in_time(silent)
        assert_it_works(clients)


def test_random_bytes_at_the_port_disturb_no_worker():
    with serving() as (_, (host,)), joined([host]) as clients:
        address, port = host.split(":")
        with contextlib.ExitStack() as stack:
            for i in range(30):
                s = stack.enter_context(socket.create_connection((address, int(port)), SECS))
                with contextlib.suppress(OSError):
                    s.sendall(os.urandom(1 << (i % 15)))
            silent = [socket.create_connection((address, int(port))) for _ in range(30)]
            assert_it_works(clients)
            for s in silent:
                s.close()


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
        hello = hello_of(host, purpose="Meet")
        end, details = stranger(host, hello, messages=[message])
        assert end is End.REFUSED
        assert re.search(text, details), details


def test_a_worker_that_does_not_read_orders_loses_its_stream_and_may_connect_again():
    with serving() as ((server,), (host,)):
        for _ in range(2):
            channel = admitted(host, hello_of(host, purpose="Meet"))
            deadline = time.monotonic() + SECS / 2
            while server._service._meeting and time.monotonic() < deadline:
                order = Order(end="x" * 60_000)  # some go into the system's buffers
                server._service._order(1, order)
            assert not server._service._meeting
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
        deadline = time.monotonic() + SECS / 2
        while server.attendance.present and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (server.attendance.present, server.aggregator.held_bytes) == (0, 0)
        channel.cut()
    assert "the worker does not read its results" in capfd.readouterr().out


def test_a_state_from_a_worker_that_is_not_the_donor_is_not_forwarded():
    with serving() as (_, hosts), joined(hosts) as clients:
        clients[1].meeting.give_state(View(number=1), [memoryview(b"evil")])
        assert_it_works(clients)
        assert not clients[0].interrupted


@pytest.mark.slow
def test_only_workers_with_certificates_of_the_authority_can_train(tmp_path):
    good = make_certificates(tmp_path, "ours", "ps", ALL_HOSTS)
    foreign = make_certificates(tmp_path, "theirs", "stranger")
    mixed = Tls(good.ca, foreign.cert, foreign.key)  # trusts the ps, but the ps does not trust it
    with serving(tls=good) as ((server,), (host,)), joined([host], tls=good) as clients:
        for wrong in (foreign, mixed):
            with pytest.raises(MembershipError, match=r"cannot be reached within 1 s: .*cert"):
                Client([host], WORKERS, 1, 1.0, wrong)
        with pytest.raises(MembershipError, match="all processes need certificates, or none"):
            Client([host], WORKERS, 1, 1.0, None)
        no_certificate = ssl.create_default_context(cafile=good.ca)
        no_certificate.check_hostname = False
        end, _ = stranger(host, hello_of(host), no_certificate)
        assert end is End.LOST
        assert_it_works(clients)
        assert server.attendance.outcome is None


@pytest.mark.slow
def test_a_certificate_is_for_the_workers_of_its_hosts_only(tmp_path, capfd):
    of_ps = make_certificates(tmp_path, "ours", "ps", ALL_HOSTS)
    of_one = make_certificates(tmp_path, "ours", "one", ["DNS:one"])
    with serving(tls=of_ps) as (_, (host,)):
        end, why = stranger(host, hello_of(host, 1), Members(of_one).client)
    assert end is End.REFUSED
    assert why == "worker 1 (two:2) was refused: its certificate is for one, not two"
    assert capfd.readouterr().out.count(f"Refused 127.0.0.1: {why}") == 1


@pytest.mark.slow
def test_a_withdrawn_certificate_ends_streams_and_opens_none(tmp_path, capfd):
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
            assert server.attendance.present == 2
            denied.write_text(f"{serial}  # of everybody\n")
            deadline = time.monotonic() + SECS
            while server.attendance.present and time.monotonic() < deadline:
                time.sleep(0.05)
            assert server.attendance.present == 0
        end, why = stranger(host, hello_of(host), Members(good).client)
    assert end is End.REFUSED
    assert (
        why == f"worker 1 (two:2) was refused: its certificate {serial} was withdrawn (--tls_deny)"
    )


def await_line(capfd, text):
    """Waits for a text in what the process prints."""
    deadline, said = time.monotonic() + SECS, ""
    while text not in said and time.monotonic() < deadline:
        time.sleep(0.05)
        said += "".join(capfd.readouterr())
    assert text in said


@pytest.mark.slow
def test_idle_connections_without_end_keep_no_worker_out(capfd):
    """A flood from one host, whose connections are renewed as they are ended."""
    stop = threading.Event()

    def flood(port):
        with contextlib.ExitStack() as stack:
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    address = ("127.0.0.1", port)
                    stack.enter_context(socket.create_connection(address, 5, ("127.0.0.2", 0)))
                stop.wait(0.002)

    with serving(secs=20.0) as (_, (host,)):
        with joined([host]) as clients:
            assert_it_works(clients)
            thread = threading.Thread(target=flood, args=(int(host.rpartition(":")[2]),))
            thread.start()
            await_line(capfd, "connections from 127.0.0.2 that did not introduce themselves")
        with joined([host]) as clients:
            assert_it_works(clients)
        stop.set()
        thread.join()
