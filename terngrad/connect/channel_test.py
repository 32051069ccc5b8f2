"""Channels: what arrives over them, and how they end."""

import contextlib
import socket
import threading
import time
from concurrent import futures

import pytest

from terngrad.connect import channel as channels
from terngrad.connect.channel import Channel, ChannelEnd, Ending, FrameError, KeepAlive, Outbox
from terngrad.connect.tls import EncryptedSocket, TlsContexts
from terngrad.testing.certificates import make_certificates
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.proxy import Fault, FaultKind, Proxy

SECS = HANG_SECS
LONGEST = 1 << 20
SIZES = (0, 1, 5, (1 << 16) - 1, 1 << 16, LONGEST)


@pytest.fixture(name="contexts", params=[False, True], ids=["plain", "tls"], scope="module")
def _contexts(request, tmp_path_factory):
    if not request.param:
        return None
    return TlsContexts(make_certificates(tmp_path_factory.mktemp("certificates"), "ours", "all"))


@contextlib.contextmanager
def connected(contexts=None, faults=(), secs=SECS):
    """Yields the two ends of a channel, that of the caller first."""
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        address = server.getsockname()
        if faults:
            proxy = stack.enter_context(Proxy(f"127.0.0.1:{address[1]}", faults))
            address = "127.0.0.1", int(proxy.address.rpartition(":")[2])
        caller = socket.create_connection(address, SECS)
        called, _ = server.accept()
        if contexts:
            called = EncryptedSocket(called, contexts.server, server_side=True)
            caller = EncryptedSocket(caller, contexts.client)
            with futures.ThreadPoolExecutor(1) as pool:
                other = pool.submit(called.handshake)
                caller.handshake()
                other.result(SECS)
        both = [Channel(each, LONGEST, secs) for each in (caller, called)]
        try:
            yield both
        finally:
            for each in both:
                each.cut()


def contents():
    return [bytes(range(256)) * (size // 256) + bytes(range(size % 256)) for size in SIZES]


def test_messages_of_all_sizes_arrive_whole_in_both_directions_at_once(contexts):
    with connected(contexts) as both:
        for one, other in (both, both[::-1]):
            threading.Thread(target=lambda o=one: [*map(o.send, contents())], daemon=True).start()
            got = iter(other)
            assert [bytes(next(got)) for _ in SIZES] == contents()


def test_a_cut_ends_readers_and_senders(contexts):
    with connected(contexts) as (here, _):
        ended = []

        def send():
            with contextlib.suppress(OSError):
                while True:
                    here.send(bytes(1 << 20))
            ended.append("sender")

        def read():
            assert [*here] == []
            ended.append("reader")

        threads = [threading.Thread(target=each, daemon=True) for each in (send, read)]
        for thread in threads:
            thread.start()
        here.cut()  # nobody has read anything: the sender waits
        for thread in threads:
            thread.join(SECS)
        assert sorted(ended) == ["reader", "sender"]


@pytest.mark.parametrize("to_server", [True, False])
def test_bytes_that_change_on_the_way_are_noted_on_both_sides_and_blame_none(
    tmp_path_factory, to_server
):
    folder = tmp_path_factory.mktemp("changed")
    fault = Fault(FaultKind.CORRUPT, to_server=to_server, after_bytes=100_000, bit=0)
    with connected(TlsContexts(make_certificates(folder, "ours", "all")), [fault]) as both:
        sender, receiver = both if to_server else both[::-1]
        sender.send(bytes(200_000))
        assert [*receiver] == []
        assert [*sender] == []  # the receiver has said why
    link = "the connection from sender to receiver: bytes have changed on"
    assert sender.changed.between("sender", "receiver").startswith(link)
    assert receiver.changed.between("receiver", "sender").startswith(link)


@pytest.mark.parametrize("sent", [b"", b"\1", b"\4\0\0\0abc", b"\4\0\0\x80[]"])
def test_what_ends_within_a_message_yields_nothing(sent):
    with connected() as (here, there):
        here._socket.sendall(sent)
        here.cut()
        assert [*there] == []
        assert there.ending == Ending(ChannelEnd.LOST, "its connection ended")
        assert not there.is_open


@pytest.mark.parametrize("first", [1, 100_000, 290_000])
def test_a_reader_does_not_wait_for_more_than_its_message_has_left(contexts, first):
    """The system wakes it for 256 KB at once, or for what is left."""
    message = bytes(range(250)) * 1200
    with connected(contexts) as (here, there), futures.ThreadPoolExecutor() as pool:
        here._socket.sendall(len(message).to_bytes(4, "little") + message[:first])
        got = pool.submit(next, iter(there))
        assert not futures.wait([got], 0.1).done  # meanwhile it may have taken what is there
        here._socket.sendall(message[first:])
        assert got.result(SECS) == message


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"\1\0\x10\0", f"a message has {LONGEST + 1} bytes; allowed are {LONGEST}"),
        (b"\1\0\x10\x80", "an ending has 1048577 bytes; allowed are 8192"),
        (b"\2\0\0\x80[]", "a control message of the channel cannot be read"),
        (b"\2\0\0\x80\xff\xff", "a control message of the channel cannot be read"),
        (b'\x09\0\0\x80["x", ""]', "a control message of the channel cannot be read"),
        (b"\0\x20\0\x80" + b"[" * 8192, "a control message of the channel cannot be read"),
    ],
)
def test_law_10_what_is_no_message_is_refused(sent, text):
    with connected() as (here, there):
        here._socket.sendall(sent)
        with pytest.raises(FrameError, match=text):
            next(iter(there))


def test_an_ending_says_why_after_the_last_message_also_if_messages_are_left_unread(contexts):
    with connected(contexts) as (here, there), futures.ThreadPoolExecutor() as pool:
        there.send(b"unread")
        here.send(b"last")
        finished = pool.submit(here.finish, Ending(ChannelEnd.REFUSED, "why"))
        assert [bytes(each) for each in there] == [b"last"]
        assert there.ending == Ending(ChannelEnd.REFUSED, "why")
        there.end()
        finished.result(SECS)


def test_finish_waits_only_briefly_for_the_other_side(monkeypatch):
    monkeypatch.setattr(channels, "_LINGER_SECS", 0.05)
    with connected() as (here, there):
        here.finish(Ending(ChannelEnd.DONE))
        assert [*there] == []
        assert there.ending == Ending(ChannelEnd.DONE)


def test_finish_waits_only_briefly_where_another_thread_reads(contexts, monkeypatch):
    monkeypatch.setattr(channels, "_LINGER_SECS", 0.05)
    with connected(contexts) as (here, there), futures.ThreadPoolExecutor() as pool:
        there.send(b"read")
        got = iter(here)
        first = next(got)
        reading = pool.submit(list, got)
        here.finish(Ending(ChannelEnd.REFUSED, "why"))
        assert (first, reading.result(SECS)) == (b"read", [])
        assert [*there] == []
        assert there.ending == Ending(ChannelEnd.REFUSED, "why")


def test_heartbeats_keep_a_channel_and_without_them_it_ends_as_silent(contexts):
    with connected(contexts, secs=0.4) as (here, there), futures.ThreadPoolExecutor() as pool:
        alive = KeepAlive()
        for each in (here, there):
            alive.add(each)
        reading = pool.submit(list, there)
        assert not futures.wait([reading], 1.0).done
        alive.stop()
        assert reading.result(SECS) == []
        assert there.ending == Ending(ChannelEnd.SILENT, "nothing was received for 0.2 s")


def test_a_reader_that_was_stopped_first_reads_what_has_come(contexts):
    with connected(contexts, secs=0.4) as (here, there):
        here.send(b"message")
        there._received_at -= 100
        assert bytes(next(iter(there))) == b"message"


def test_a_heartbeat_never_blocks(contexts):
    with connected(contexts) as (here, _), futures.ThreadPoolExecutor() as pool:
        sending = pool.submit(here.send, bytes(1 << 26))
        while not here._sending.locked():
            time.sleep(0.001)
        here._sent_at = 0.0
        here.keep_alive()  # another thread sends
        assert not sending.done()
        here.cut()
        with pytest.raises(OSError, match=r".*"):
            sending.result(SECS)
    here._sent_at = 0.0
    here.keep_alive()  # it has ended


def test_an_outbox_sends_until_it_is_closed_or_its_channel_has_ended():
    with connected() as (here, there), futures.ThreadPoolExecutor() as pool:
        outbox = Outbox(here)
        for message in (b"first", b"second"):
            outbox.put(message)
        assert (len(outbox), outbox.waiting_bytes) == (2, 11)
        sending = pool.submit(outbox.send_all)
        got = iter(there)
        assert [bytes(next(got)) for _ in range(2)] == [b"first", b"second"]
        outbox.close()
        sending.result(SECS)
        assert outbox.waiting_bytes == 0
        there.cut()
        outbox = Outbox(here)
        for _ in range(20):
            outbox.put(bytes(1 << 20))
        pool.submit(outbox.send_all).result(SECS)
        assert not here.is_open


def test_a_channel_that_is_cut_takes_its_outbox_along():
    with connected() as (here, _), futures.ThreadPoolExecutor() as pool:
        outbox = Outbox(here)
        sending = pool.submit(outbox.send_all)
        outbox.cut()
        sending.result(SECS)
        assert not here.is_open


@pytest.mark.parametrize("ends", ["cut", "ended by the other side", "closed", "never open"])
def test_an_outbox_that_sends_no_more_keeps_no_messages(ends):
    with connected() as (here, there), futures.ThreadPoolExecutor() as pool:
        outbox = Outbox(None if ends == "never open" else here)
        sending = pool.submit(outbox.send_all)
        if ends == "ended by the other side":
            there.cut()
        for _ in range(20):
            outbox.put(bytes(1 << 20))
        if ends == "closed":
            outbox.close()
            outbox.put(b"late")
            got = iter(there)
            assert [len(next(got)) for _ in range(20)] == 20 * [1 << 20]
        elif ends != "ended by the other side":
            outbox.cut()
        sending.result(SECS)
        outbox.put(b"late")
        assert outbox.waiting_bytes == 0
        assert len(outbox) <= 1  # the mark of its end


def test_a_keep_alive_cuts_what_is_open():
    with connected() as (here, there):
        alive = KeepAlive()
        alive.add(here)
        assert not alive.is_idle
        alive.cut()
        assert alive.is_idle
        assert [*there] == []
        alive.stop()
