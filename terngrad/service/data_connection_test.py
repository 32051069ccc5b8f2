"""Data connections: what arrives over them, and who gets one."""

import contextlib
import socket
import threading
from concurrent import futures

import grpc
import pytest

from terngrad.service import data_listener, moved_stream
from terngrad.service.data_connection import TOKEN_BYTES, dial
from terngrad.service.data_listener import DataListener
from terngrad.service.members import Members
from terngrad.service.messages import MOVE, FrameError, Header, OperationMessage, join_frame
from terngrad.service.moved_stream import MovableCall
from terngrad.service.streams import LONGEST_PUSH, Outbox, read_offer
from terngrad.testing.certificates import make_certificates
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.proxy import Fault, Kind, Proxy

SECS = HANG_SECS
DECLARATION = join_frame(Header(declared=OperationMessage(name="sum")))
SIZES = (0, 1, 5, (1 << 16) - 1, 1 << 16, LONGEST_PUSH)


@pytest.fixture(name="tls", params=[False, True], ids=["plain", "tls"], scope="module")
def _tls(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return make_certificates(folder, "authority", "all") if request.param else None


@contextlib.contextmanager
def listening(tls=None):
    listener = DataListener(tls, SECS, 2, print)
    listener.start("127.0.0.1")
    try:
        yield listener
    finally:
        listener.close()


def connect(offer, tls=None, token=None):
    port, own = read_offer(offer.metadata)
    members = Members(tls) if tls else None
    return dial(("127.0.0.1", port), token or own, members, LONGEST_PUSH, SECS)


@contextlib.contextmanager
def connected(tls=None):
    """Yields the connection of a worker, and the offer of its ps."""
    with listening(tls) as listener:
        offer = listener.offer()
        try:
            yield connect(offer, tls), offer
        finally:
            offer.close()


def contents():
    return [bytes(range(256)) * (size // 256) + bytes(range(size % 256)) for size in SIZES]


def test_messages_of_all_sizes_arrive_whole_in_both_directions_at_once(tls):
    with connected(tls) as (worker, offer):
        for one, other in [(worker, offer.connection), (offer.connection, worker)]:
            threading.Thread(target=lambda o=one: [*map(o.send, contents())], daemon=True).start()
            got = iter(other)
            assert [bytes(next(got)) for _ in SIZES] == contents()


def test_a_cut_ends_who_reads_and_who_sends(tls):
    with connected(tls) as (worker, _):
        ended = []

        def send():
            with contextlib.suppress(OSError):
                while True:
                    worker.send(bytes(1 << 20))
            ended.append("sender")

        def read():
            assert [*worker] == []
            ended.append("reader")

        threads = [threading.Thread(target=each, daemon=True) for each in (send, read)]
        for thread in threads:
            thread.start()
        worker.cut()  # nobody has read anything: the sender waits
        for thread in threads:
            thread.join(SECS)
        assert sorted(ended) == ["reader", "sender"]


@pytest.mark.parametrize("to_ps", [True, False])
def test_bytes_that_change_on_the_way_are_told_on_both_sides_and_blame_none(
    tmp_path_factory, to_ps
):
    tls = make_certificates(tmp_path_factory.mktemp("changed"), "authority", "all")
    told = {"ps": [], "worker": []}
    fault = Fault(Kind.CORRUPT, to_server=to_ps, after_bytes=100_000, bit=0)
    with listening(tls) as listener, contextlib.ExitStack() as stack:
        offer = listener.offer(told["ps"].append)
        port, token = read_offer(offer.metadata)
        proxy = stack.enter_context(Proxy(f"127.0.0.1:{port}", [fault]))
        stack.callback(offer.close)
        way = "127.0.0.1", int(proxy.address.rpartition(":")[2])
        worker = dial(way, token, Members(tls), LONGEST_PUSH, SECS, told["worker"].append)
        ends = {"ps": offer.connection, "worker": worker}
        sender, receiver = ("worker", "ps") if to_ps else ("ps", "worker")
        ends[sender].send(bytes(200_000))
        assert [*ends[receiver]] == []
        assert [*ends[sender]] == []  # the receiver has said why
    names = {"ps": "ps 0 (p:1)", "worker": "worker 1 (w:1)"}
    link = f"the connection from {names[sender]} to {names[receiver]}: bytes have changed on"
    for side, other in (("ps", "worker"), ("worker", "ps")):
        (error,) = told[side]
        assert error.between(names[side], names[other]).startswith(link)


@pytest.mark.parametrize("sent", [b"", b"\1", b"\4\0\0\0abc"])
def test_what_ends_within_a_message_yields_nothing(sent):
    with connected() as (worker, offer):
        worker._socket.sendall(sent)
        worker.cut()
        assert [*offer.connection] == []


@pytest.mark.parametrize("first", [1, 100_000, 290_000])
def test_a_reader_does_not_wait_for_more_than_its_message_has_left(tls, first):
    """The system wakes it for 256 KB at once, or for what is left."""
    message = bytes(range(250)) * 1200
    with connected(tls) as (worker, offer), futures.ThreadPoolExecutor() as pool:
        worker._socket.sendall(len(message).to_bytes(4, "little") + message[:first])
        got = pool.submit(next, iter(offer.connection))
        assert not futures.wait([got], 0.1).done  # meanwhile it may have taken what is there
        worker._socket.sendall(message[first:])
        assert got.result(SECS) == message


def test_a_message_that_is_too_long_is_refused():
    with connected() as (worker, offer):
        worker.send(bytes(LONGEST_PUSH + 1))
        with pytest.raises(FrameError, match=rf"has {LONGEST_PUSH + 1} bytes; allowed are"):
            next(iter(offer.connection))


def test_a_token_serves_no_longer_than_its_stream():
    with listening() as listener:
        offer, other = listener.offer(), listener.offer()
        other.close()
        for refused, token in [(other, None), (offer, bytes(TOKEN_BYTES))]:
            with pytest.raises(OSError, match=r"did not accept|reset"):
                connect(refused, token=token)
        offer.close()
        assert not listener._offers


def test_a_certificate_for_another_host_or_of_another_authority_is_refused(tmp_path):
    good = make_certificates(tmp_path, "authority", "good")
    elsewhere = make_certificates(tmp_path, "authority", "elsewhere", ("DNS:other.host",))
    foreign = make_certificates(tmp_path, "stranger", "foreign")
    for ps, worker in [(elsewhere, good), (good, foreign), (foreign, good)]:
        with listening(ps) as listener:
            offer = listener.offer()
            with pytest.raises(OSError, match=r"certificate|TLS|reset"):
                connect(offer, worker)
            assert not offer.connection
    with listening(good) as listener, pytest.raises(OSError, match=r"did not accept|reset"):
        connect(listener.offer())  # without TLS


def test_strangers_are_few_and_never_keep_a_worker_out(monkeypatch):
    monkeypatch.setattr(data_listener, "_TOKEN_SECS", SECS)
    with listening() as listener, contextlib.ExitStack() as held:
        offer = listener.offer()
        port, _ = read_offer(offer.metadata)
        call = lambda: held.enter_context(socket.create_connection(("127.0.0.1", port), SECS))
        silent = [call() for _ in range(2 + 32)]
        connect(offer)
        assert silent[0].recv(1) == b""  # the oldest one made room


def test_a_caller_without_a_token_is_ended_in_time(monkeypatch):
    monkeypatch.setattr(data_listener, "_TOKEN_SECS", 0.2)
    with listening() as listener:
        address = ("127.0.0.1", listener.port)
        with socket.create_connection(address, SECS) as late, contextlib.suppress(OSError):
            late.sendall(b"1")  # the ps may have ended it before
            assert late.recv(1) == b""


def test_a_worker_that_moves_without_a_connection_is_refused():
    with listening() as listener:
        messages = listener.offer().received([MOVE, DECLARATION], Outbox())
        with pytest.raises(FrameError, match="moves to a data connection that it has not opened"):
            next(messages)


def test_a_stream_that_does_not_move_is_read_to_its_end():
    with connected() as (_, offer):
        assert [*offer.received([DECLARATION] * 2, Outbox())] == [DECLARATION] * 2
        assert [*offer.received([], Outbox())] == []


def test_the_end_of_the_connection_ends_what_is_received_while_the_stream_is_open():
    def stream():
        yield MOVE
        raise AssertionError("the stream must not be read any more")

    with connected() as (worker, offer):
        worker.send(b"last")
        worker.cut()
        assert [*offer.received(stream(), Outbox())] == [b"last"]


def test_both_sides_move_at_any_time_and_lose_no_message():
    with connected() as (worker, offer):
        outbox = Outbox()
        sent = iter(outbox)
        outbox.put(b"over the stream")
        assert next(sent) == b"over the stream"
        received = offer.received([DECLARATION, MOVE], outbox)
        assert next(received) == DECLARATION
        worker.send(b"up")
        assert next(received) == b"up"
        outbox.put(b"down")
        assert next(sent) == MOVE
        outbox.close()
        assert not [*sent]
        assert [*worker] == [b"down"]


def test_nothing_is_offered_where_nothing_listens():
    told = []
    listener = DataListener(None, SECS, 2, told.append)
    listener.start("192.0.2.1")  # of no machine
    assert listener.offer().metadata == ()
    assert read_offer(()) is None
    assert told[0].startswith("Gradients travel over gRPC, which takes longer: [Errno")


def test_a_machine_without_ipv6_listens_at_all_its_addresses(monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    listener = DataListener(None, SECS, 2, print)
    listener.start("::")
    offer = listener.offer()
    connect(offer)
    assert offer.connection
    listener.close()
    assert listener.offer().metadata == ()


class Call:
    """A stream of gRPC that a test ends."""

    def __init__(self, *messages):
        self.over, self.cancelled, self.callbacks = threading.Event(), False, []
        self.messages = messages

    def __iter__(self):
        yield from self.messages
        self.over.wait(SECS)

    def add_callback(self, callback):
        self.callbacks.append(callback)
        return True

    def end(self):
        self.over.set()
        for callback in self.callbacks:
            callback()

    def cancel(self):
        self.cancelled = True
        self.end()

    def code(self):
        self.over.wait(SECS)
        return grpc.StatusCode.OK


@contextlib.contextmanager
def moved(*messages):
    """Yields a moved stream of a worker, and what its ps has of it."""
    with connected() as (worker, offer):
        stream, outbox = Call(*messages), Outbox()
        call = MovableCall(stream, outbox)
        call.move(worker)
        yield stream, call, outbox, offer.connection


def test_the_goodbye_is_the_last_that_a_ps_reads_before_it_ends_the_stream():
    with moved(b"before", MOVE) as (stream, call, outbox, of_ps):
        outbox.put(b"goodbye")
        outbox.close()
        assert [*outbox] == [MOVE]
        assert [*of_ps] == [b"goodbye"]
        of_ps.send(b"last result")
        of_ps.cut()
        stream.end()
        assert [*call] == [b"before", b"last result"]
        assert not stream.cancelled


@pytest.mark.parametrize("messages", [(), (MOVE,)], ids=["before its ps moves", "after"])
def test_the_end_of_a_stream_ends_its_connection(messages):
    with moved(*messages) as (stream, call, _, of_ps), futures.ThreadPoolExecutor() as pool:
        reading = pool.submit(list, call)
        stream.end()
        assert reading.result(SECS) == []
        assert [*of_ps] == []


def test_a_stream_whose_connection_alone_breaks_is_cancelled(monkeypatch):
    monkeypatch.setattr(moved_stream, "_END_SECS", 0.1)
    with moved(MOVE) as (stream, call, _, of_ps):
        of_ps.end()
        assert [*call] == []
        assert stream.cancelled


def test_a_connection_that_breaks_while_a_worker_sends_ends_what_it_sends():
    with moved() as (_, _, outbox, of_ps):
        of_ps.cut()
        while outbox.waiting_bytes < 1 << 22:
            outbox.put(bytes(1 << 20))
        outbox.close()
        assert [*outbox] == [MOVE]


def test_a_worker_that_heard_nothing_in_time_may_connect_again_until_it_moves():
    with listening() as listener:
        offer = listener.offer()
        first, second = connect(offer), connect(offer)
        assert [*first] == []
        second.send(b"gradient")
        assert next(offer.received([MOVE], Outbox())) == b"gradient"
        with pytest.raises(OSError, match=r"did not accept|reset"):
            connect(offer)
        assert not listener._offers
