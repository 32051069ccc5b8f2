"""Joining, agreeing and losing each other, between threads and sockets of this process."""

import queue
import socket
import threading

import pytest

from terngrad.exchange.membership import Membership, MembershipError, split_address

TIMEOUT = 20.0


def free_address():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


def hosts_of(count):
    return [f"host{i}:2222" for i in range(count)]


def in_threads(*calls):
    """What each call returns or raises."""
    results = [None] * len(calls)

    def run(i):
        try:
            results[i] = calls[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT)
        assert not thread.is_alive()
    return results


def join_all(count, timeout_secs=TIMEOUT):
    """The members, and a queue of what each loses: (rank, text)."""
    address, losses = free_address(), queue.Queue()

    def member(rank):
        on_loss = lambda text: losses.put((rank, text))
        return Membership(hosts_of(count), rank, address, timeout_secs, on_loss)

    members = in_threads(*(lambda rank=rank: member(rank) for rank in range(count)))
    assert all(isinstance(m, Membership) for m in members), members
    return members, losses


def end(members):
    in_threads(*(lambda m=m: m.__exit__(None, None, None) for m in members))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_join_agree_and_leave_without_a_loss(count):
    members, losses = join_all(count)
    for facts in ({"layout": "abc"}, {"parameters": "def"}):
        calls = (lambda m=m, f=facts: m.agree(f) for m in members)
        assert in_threads(*calls) == [None] * count
    end(members)
    assert losses.empty()


def test_law_10_a_difference_is_named_with_both_values():
    members, _ = join_all(3)
    facts = [{"batch_size": "32", "net": "lenet"}] * 2 + [{"batch_size": "16", "net": "lenet"}]
    errors = in_threads(*(lambda m=m, f=f: m.agree(f) for m, f in zip(members, facts, strict=True)))
    text = r"batch_size is 16 on worker 2 \(host2:2222\) and 32 on worker 0 \(host0:2222\)"
    for error in errors:
        with pytest.raises(MembershipError, match=text):
            raise error


def test_a_fact_that_only_one_has_is_named():
    members, _ = join_all(2)
    errors = in_threads(lambda: members[0].agree({}), lambda: members[1].agree({"seed": "1"}))
    assert "seed is 1 on worker 1" in str(errors[0])


def test_law_10_a_process_that_does_not_come_is_named():
    address = free_address()
    with pytest.raises(MembershipError, match=r"worker 1 \(host1:2222\) did not come within 0.3 s"):
        Membership(hosts_of(2), 0, address, 0.3)


def test_law_10_a_chief_that_cannot_be_reached_is_named():
    address = free_address()
    with pytest.raises(MembershipError, match=rf"worker 0 \(host0:2222\) cannot be .* {address}"):
        Membership(hosts_of(2), 1, address, 0.3)


def test_law_10_an_index_that_is_taken_is_named():
    address = free_address()
    make = lambda rank: lambda: Membership(hosts_of(3), rank, address, 1.0)
    results = in_threads(make(0), make(1), make(1))
    assert any("worker 1 (host1:2222) is here already" in str(r) for r in results)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_process_that_dies_is_named_to_all_others(lost):
    members, losses = join_all(3)
    for peer in members[lost]._peers.values():  # as the kernel closes them after kill -9
        peer.left = True
        peer._connection.shutdown(socket.SHUT_RDWR)
    told = dict(losses.get(timeout=TIMEOUT) for _ in range(2))
    assert told.keys() == {0, 1, 2} - {lost}
    for text in told.values():
        assert f"worker {lost} (host{lost}:2222) died" in text


def test_a_process_that_hangs_is_named(monkeypatch):
    members, losses = join_all(2, timeout_secs=1.5)
    for peer in members[1]._peers.values():
        monkeypatch.setattr(peer, "send", lambda message: None)
    rank, text = losses.get(timeout=TIMEOUT)
    assert rank == 0
    assert "worker 1 (host1:2222) hangs: nothing was heard of it for" in text


def test_the_others_learn_why_a_process_fails():
    members, losses = join_all(2)
    error = ValueError("train-00001: record 7 is damaged")
    members[1].__exit__(type(error), error, None)
    rank, text = losses.get(timeout=TIMEOUT)
    assert rank == 0
    assert "worker 1 (host1:2222) failed: train-00001: record 7 is damaged" in text


@pytest.mark.parametrize(
    "noise", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, b'{"rank": 99}\n', b"[1]\n"]
)
def test_a_stranger_at_the_door_disturbs_nobody(noise):
    address, losses = free_address(), queue.Queue()
    on_loss = lambda text: losses.put(text)
    make = lambda rank: Membership(hosts_of(2), rank, address, TIMEOUT, on_loss)

    def stranger_then_member():
        while True:
            try:
                with socket.create_connection(split_address(address)) as s:
                    s.sendall(noise)
                break
            except ConnectionRefusedError:
                continue
        return make(1)

    members = in_threads(lambda: make(0), stranger_then_member)
    assert all(isinstance(m, Membership) for m in members), members
    end(members)
    assert losses.empty()


@pytest.mark.parametrize("address", ["host", "host:", ":22", "host:x", "host:0", "host:65536"])
def test_law_10_an_address_without_host_or_port_is_named(address):
    with pytest.raises(MembershipError, match="must be host:port"):
        split_address(address)
