"""Processes and foreign programs connect to the chief, between threads of this process."""

import contextlib
import dataclasses
import http.server
import re
import socket
import threading
import time

import pytest

from terngrad.cluster import admission
from terngrad.cluster.addresses import listen, split_address
from terngrad.cluster.errors import MembershipError, OtherFailedError
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import MAGIC, VERSION, Hello, frame
from terngrad.testing import threads
from terngrad.testing.addresses import free_address
from terngrad.testing.proxy import FaultKind, Proxy, plan
from terngrad.testing.selection import sample
from terngrad.testing.threads import TIMEOUT, assert_met, hosts_of, in_threads, received

SECRET = b"a secret of many characters"


def joining(rank, address, hosts=None, timeout_secs=TIMEOUT, secret=b""):
    return threads.joining(rank, address, hosts or hosts_of(2), timeout_secs, secret=secret)


def connected(address):
    return socket.create_connection(split_address(address), TIMEOUT)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_all_meet_at_the_chiefs_address(host):
    try:
        address = free_address(host)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    hosts = hosts_of(3)
    join = lambda rank: lambda: admission.join(ConnectConfig(hosts, rank, (), TIMEOUT), address)
    assert_met(in_threads(*map(join, range(3))))


def test_law_10_a_process_that_does_not_come_is_named():
    with pytest.raises(MembershipError, match=r"worker 1 \(host1:2222\) did not join within 0.3 s"):
        joining(0, free_address(), timeout_secs=0.3)()


def test_law_10_a_chief_that_cannot_be_reached_is_named():
    address = free_address()
    with pytest.raises(MembershipError, match=rf"worker 0 \(host0:2222\) cannot be .* {address}"):
        joining(1, address, timeout_secs=0.3)()


def test_law_10_an_index_that_is_taken_is_named():
    address, hosts, refused = free_address(), hosts_of(3), threading.Event()

    def first():
        try:
            return joining(1, address, hosts)()
        finally:
            refused.set()  # of the two, the one that is refused ends

    def last():
        assert refused.wait(TIMEOUT)
        return joining(2, address, hosts)()

    results = in_threads(joining(0, address, hosts), first, first, last)
    assert sum("worker 1 (host1:2222) has already joined" in str(r) for r in results) == 1


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_law_10_a_process_with_other_hosts_is_refused_and_learns_why_if_it_may(secret, capfd):
    address, others = free_address(), ["host0:2222", "other:2222"]
    join = joining(1, address, others, secret=secret)
    why = "its host 1 is other:2222, the chief's is host1:2222"
    line = f"worker 1 (host1:2222) was refused: {why}"
    other, chief = map(str, received(join, address, hosts_of(2), secret=secret, fault=line))
    assert line in chief and "did not join" not in chief
    if secret:
        assert line in other
    else:  # anybody could ask
        assert "worker 1 was refused: its hosts differ from the chief's, whose log says" in other
        assert "host1" not in other
        assert f"worker 0 (host0:2222): Refused 127.0.0.1: {line}\n" in capfd.readouterr().out


def test_an_unknown_caller_is_not_taken_for_a_process_that_is_here():
    address, hosts = free_address(), hosts_of(3)
    listening = listen(*split_address(address))
    with admission.ChiefListener(ConnectConfig(hosts, 0), listening) as chief:
        held = connected(address)
        held.sendall(hello_of(1, hosts))
        await_that(lambda: chief.absent() == [2])
        unknown = connected(address)
        unknown.sendall(hello_of(1, ["host0:2222", "other:2222"]))
        assert unknown.recv(1)
        assert chief.complaint(5.0) == "worker 2 (host2:2222) did not join within 5 s"
        unknown.close()
        held.close()


def test_all_meet_who_share_a_secret_and_get_a_token_that_nobody_has_sent():
    address, hosts, sent = free_address(), hosts_of(3), []
    all_meet = (joining(rank, address, hosts, secret=SECRET) for rank in range(3))
    found = in_threads(*all_meet)
    assert_met(found)
    found[0][1].send = lambda message, send=found[0][1].send: (sent.append(message), send(message))
    config = lambda rank: ConnectConfig(hosts, rank, (), TIMEOUT, secret=SECRET)
    share = lambda rank: lambda: admission.share_token(config(rank), found[rank])
    tokens = set(in_threads(*map(share, range(3))))
    assert len(tokens) == 1
    assert tokens != {bytes.fromhex(sent[0]["token"])}


@pytest.mark.parametrize(
    ("chief", "other", "fault", "why"),
    [
        (SECRET, b"", "it was started without the secret (TERNGRAD_SECRET) of", "was started with"),
        (b"", SECRET, "it has a secret (TERNGRAD_SECRET), this process has", "without a secret"),
        (SECRET, b"guess" * 4, "it has another secret", "it has another secret than this process"),
    ],
    ids=["missing", "unknown", "different"],
)
def test_law_10_a_process_without_the_secret_learns_nothing_else(chief, other, fault, why):
    address = free_address()
    join = joining(1, address, ["host0:2222", "else:1"], secret=other)
    second, first = map(str, received(join, address, hosts_of(2), None, chief, fault))
    assert fault in first and "worker 1 (host1:2222) did not join within 5 s" in first
    assert why in second and "host1" not in second


def failing(rank, address, hosts, secret=b"", timeout_secs=TIMEOUT):
    why = "--train_dir=/x: is not writable"
    config = ConnectConfig(hosts, rank, (), timeout_secs, secret=secret)
    return lambda: admission.report_failure(config, address, why)


@pytest.mark.parametrize("secret", [b"", SECRET])
@pytest.mark.parametrize("first", [0, 1])
def test_law_10_a_failure_before_a_process_has_joined_is_reported_to_all(secret, first, capfd):
    address, hosts = free_address(), hosts_of(3)
    has_reported = threading.Event()

    def late():
        assert has_reported.wait(TIMEOUT)  # it comes after the report to the other
        return joining(2, address, hosts, secret=secret)()

    def early():
        try:
            return joining(1 - first, address, hosts, secret=secret)()
        finally:
            has_reported.set()

    fails = failing(first, address, hosts, secret)
    if first:  # the chief waits for the late one, to tell it
        has_reported.set()
    none, *errors = in_threads(fails, early, late)
    assert none is None
    text = f"worker {first} (host{first}:2222) failed: --train_dir=/x: is not writable"
    for error in errors:
        assert isinstance(error, OtherFailedError)
        assert str(error) == text


def test_processes_that_all_fail_before_they_join_do_not_wait_for_each_other():
    address, hosts = free_address(), hosts_of(3)
    in_threads(*(failing(rank, address, hosts) for rank in range(3)))  # it would time out
    with pytest.raises(ConnectionRefusedError):  # nobody listens any more
        socket.create_connection(split_address(address))


def test_a_process_that_nobody_asks_ends_after_the_time_out():
    for rank in (0, 1):
        began, address = time.monotonic(), free_address()
        failing(rank, address, hosts_of(2), timeout_secs=0.1)()
        assert time.monotonic() - began >= 0.1
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(split_address(address))


def hello_of(rank, hosts):
    return MAGIC + frame(dataclasses.asdict(Hello("Membership", rank, 0, hosts)))


def test_a_process_that_left_before_all_had_come_may_come_again():
    address, hosts = free_address(), hosts_of(3)
    listening = listen(*split_address(address))
    with admission.ChiefListener(ConnectConfig(hosts, 0), listening) as chief:
        for _ in range(2):
            with connected(address) as s:
                s.sendall(hello_of(1, hosts))
                await_that(lambda: chief.absent() == [2])
            await_that(lambda: chief.absent() == [1, 2])
        assert not chief.peers and not chief.failure


def await_that(condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("noise", "reported"),
    [
        (b"", ""),
        (b"GET / HTTP/1.1\r\n\r\n", "it did not introduce itself"),
        (b"\xff" * 5000, "it did not introduce itself"),
        (MAGIC + frame([1]), "it did not introduce itself"),
        (MAGIC + frame({"version": VERSION}), "it did not introduce itself"),
        (
            MAGIC + frame({"version": VERSION - 1}),
            f"its version is {VERSION - 1}; allowed is {VERSION}",
        ),
        (MAGIC + b"\0\0\1\0" + b"[" * (1 << 16), "it did not introduce itself"),
        (MAGIC + b"\0\0\0\1" + b"[" * 200_000, "it did not introduce itself"),
        (
            hello_of(2, hosts_of(2)),
            "worker 2 is not among the 2 hosts: all processes need the",
        ),
        (hello_of(0, hosts_of(2)), "worker 0 (host0:2222) is not among the 2 hosts"),
        (
            hello_of(1, ["host0:2222", "\ud800\n\x1b[2J"]),
            "its host 1 is \\ud800\\n\\x1b[2J, the chief's is host1:2222",
        ),
    ],
    ids=lambda each: f"{each[:12]!r} of {len(each)}",
)
def test_a_caller_that_does_not_belong_to_the_training_disturbs_nobody(noise, reported, capsys):
    address = free_address()

    def unknown_then_member():
        with connected(address) as s, contextlib.suppress(OSError):
            s.sendall(noise)
            s.shutdown(socket.SHUT_WR)
            while s.recv(1 << 16):
                pass
        return joining(1, address)()

    assert_met(in_threads(joining(0, address), unknown_then_member))
    said = capsys.readouterr().out
    assert reported in said and said.count("\n") == bool(reported), said
    assert "\x1b" not in said


def test_unknown_callers_that_say_nothing_or_little_delay_nobody():
    address = free_address()
    results, join = [], joining(0, address)
    chief = threading.Thread(target=lambda: results.append(join()))
    chief.start()
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(address)) for _ in range(20)]
        for s in idle[10:]:
            s.sendall(MAGIC)
        results.append(joining(1, address)())
        chief.join(TIMEOUT)
        assert_met(sorted(results, key=lambda peers: min(peers), reverse=True))
        for s in idle:  # and none is left connected
            s.settimeout(TIMEOUT)
            with contextlib.suppress(ConnectionResetError):
                assert s.recv(1) == b""


def test_many_unknown_callers_are_bounded_and_keep_nobody_out():
    address = free_address()
    results, join = [], joining(0, address)
    chief = threading.Thread(target=lambda: results.append(join()))
    chief.start()
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connected(address)) for _ in range(150)]
        crowd[0].settimeout(TIMEOUT)
        assert crowd[0].recv(1) == b""  # while the chief still waits
        results.append(joining(1, address)())
        chief.join(TIMEOUT)
    assert_met(sorted(results, key=lambda peers: min(peers), reverse=True))


@pytest.mark.parametrize("seed", sample(range(80, 100), in_ci=range(80, 86)))
def test_over_a_bad_network_processes_meet_or_learn_why_not(seed):
    address = free_address()
    kinds = [FaultKind.DELAY, FaultKind.THROTTLE, FaultKind.CUT, FaultKind.HALF_CLOSE]
    small = [dataclasses.replace(f, after_bytes=f.after_bytes % 80) for f in plan(seed, kinds, 3)]
    slow = small[0].kind in (FaultKind.DELAY, FaultKind.THROTTLE)
    secs = TIMEOUT if slow else 0.5
    with Proxy(address, small) as proxy:
        results = in_threads(joining(0, address, None, secs), joining(1, proxy.address, None, secs))
    for result in results:
        if not isinstance(result, dict):
            assert isinstance(result, MembershipError) and "\n" not in str(result), repr(result)
    assert not slow or all(isinstance(result, dict) for result in results), results


def test_a_time_out_stays_one_while_unknown_callers_keep_connecting():
    address, over = free_address(), threading.Event()
    join = joining(0, address, timeout_secs=0.5)

    def knock(s):
        with contextlib.suppress(OSError):
            while not over.wait(0.05):
                s.sendall(b"t")

    def chief():
        try:
            with pytest.raises(MembershipError, match="did not join"):
                join()
        finally:
            over.set()

    with connected(address) as s:
        assert in_threads(chief, lambda: knock(s)) == [None, None]


def test_law_10_another_service_at_the_chiefs_address_is_named():
    service = http.server.BaseHTTPRequestHandler
    with http.server.HTTPServer(("127.0.0.1", 0), service) as server:
        service.log_message = lambda *arguments: None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        text = f"the program at {address} is not a worker of this training"
        with pytest.raises(MembershipError, match=re.escape(text)):
            joining(1, address)()
        server.shutdown()


def test_law_10_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(MembershipError, match=f"cannot listen at {address}: Address already"):
            joining(0, address)()


@pytest.mark.parametrize(
    "address", ["host", "host:", ":22", "host:x", "host:0", "host:65536", "::1:22"]
)
def test_law_10_an_address_without_host_or_port_is_named(address):
    with pytest.raises(MembershipError, match=r"must be host:port|must be in brackets"):
        split_address(address)
