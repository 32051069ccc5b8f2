"""A link that is refused, and one that opens a channel while it ends."""

import dataclasses
import socket
import threading
from unittest import mock

import pytest

from terngrad.cluster.errors import MembershipError
from terngrad.connect import link
from terngrad.connect.calling import RefusedError
from terngrad.connect.channel import Channel, ChannelEnd, Ending, FrameError
from terngrad.connect.config import ConnectConfig
from terngrad.connect.link import LinkEvents
from terngrad.testing.addresses import free_addresses
from terngrad.testing.limits import HANG_SECS

SECS = HANG_SECS


@pytest.fixture(name="begin")
def _begin(monkeypatch):
    """Starts a link that opens channels with a function."""
    begun = []

    def begin(open_channel, **events):
        monkeypatch.setattr(link, "_PAUSE_SECS", 0.01)
        ignore = lambda *arguments: None
        names = {field.name for field in dataclasses.fields(LinkEvents)} - {"lock"}
        calls = LinkEvents(threading.RLock(), **dict.fromkeys(names, ignore) | events)
        begun.append(link.ChannelLink("ps 0", open_channel, SECS, calls, waits=False))
        begun[-1].start()
        return begun[-1]

    yield begin
    for each in begun:
        each.end()
        each.join(SECS)


def pair():
    here, there = socket.create_server(("127.0.0.1", 0)), None
    with here:
        there = socket.create_connection(here.getsockname())
        return Channel(here.accept()[0], 1 << 10, SECS), Channel(there, 1 << 10, SECS)


def test_a_link_goes_on_after_a_refusal_if_its_user_says_so(begin):
    attempts, refusals = [], []

    def refuse():
        attempts.append(1)
        raise RefusedError(f"other flags {len(attempts)}")

    def on_refusal(why):
        refusals.append(why)
        return len(refusals) < 3

    begin(refuse, on_refusal=on_refusal).join(HANG_SECS)
    assert refusals == ["other flags 1", "other flags 2", "other flags 3"]


def test_a_channel_that_opens_while_its_link_ends_gets_the_last_message(begin):
    opening, ended = threading.Event(), threading.Event()
    ps, worker = pair()

    def open_channel():
        opening.set()
        assert ended.wait(SECS)
        return worker

    begun = begin(open_channel)
    assert opening.wait(SECS)
    begun.end(b"goodbye")
    ended.set()
    assert [bytes(message) for message in ps] == [b"goodbye"]
    ps.finish(Ending(ChannelEnd.DONE))
    begun.join(SECS)


def test_a_broken_channel_is_opened_again_and_a_refused_one_is_not(begin):
    pairs, said = [pair() for _ in range(3)], []
    opened = iter([worker for _, worker in pairs])
    recorder = lambda word: lambda *arguments: said.append((word, *arguments))
    names = ("on_break", "on_open", "on_loss", "on_refusal", "on_message_refusal")
    events = {name: recorder(name) for name in names}
    begun = begin(lambda: next(opened), **events)
    pairs[0][0].cut()
    pairs[1][0].finish(Ending(ChannelEnd.CLOSED, "another run has begun"))
    pairs[2][0].finish(Ending(ChannelEnd.REFUSED, "bad frame"))
    begun.join(SECS)
    assert said == [
        ("on_open",),
        ("on_break",),
        ("on_open",),
        ("on_break",),
        ("on_open",),
        ("on_message_refusal", "ps 0 refused this worker: bad frame"),
    ]


def test_a_loss_tells_why_the_channel_ended_and_how_long_the_link_searched(begin):
    (ps, worker), losses = pair(), []
    late = "ps 0 cannot be reached within 0.3 s: Connection refused"
    opened = iter([lambda: worker])

    def open_channel():
        return next(opened, mock.Mock(side_effect=MembershipError(late)))()

    begun = begin(open_channel, on_loss=losses.append)
    ps.finish(Ending(ChannelEnd.DONE))
    begun.join(SECS)
    assert losses == [f"ps 0 ended before this worker; {late}"]


@pytest.mark.parametrize(
    ("error", "loss"),
    [
        (FrameError("bad"), "ps 0 sent a message that cannot be read: bad"),
        (KeyError("x"), "this worker failed while it handled its link to ps 0: KeyError('x')"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_ps_is_not_blamed_for_an_error_of_this_worker(begin, error, loss):
    (ps, worker), losses = pair(), []
    begun = begin(lambda: worker, on_loss=losses.append, on_message=mock.Mock(side_effect=error))
    ps.send(b"x")
    begun.join(SECS)
    assert losses == [loss]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_link_that_cannot_go_on_says_so_until_its_user_gives_it_up(begin):
    (ps, worker), answers, losses = pair(), [True, False], []

    def on_loss(why):
        losses.append(why)
        return answers.pop(0)

    begun = begin(
        lambda: worker, on_loss=on_loss, on_message=mock.Mock(side_effect=FrameError("bad"))
    )
    ps.send(b"x")
    begun.join(SECS)
    assert losses == 2 * ["ps 0 sent a message that cannot be read: bad"]


@pytest.mark.parametrize("fails", ["message", "sender"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_link_that_fails_breaks_its_channel_before_its_ps_is_lost(begin, monkeypatch, fails):
    (ps, worker), said, has_begun = pair(), [], threading.Event()
    read = mock.Mock(side_effect=MemoryError)
    events = {
        "on_break": lambda: said.append(("break", begun.is_up)),
        "on_loss": lambda why: said.append(("loss", begun.is_up)),
    }
    start = threading.Thread.start

    def start_but_senders(thread):
        if fails == "sender" and thread._target is link._send_all:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_but_senders)
    begun = begin(lambda: has_begun.wait(SECS) and worker, on_message=read, **events)
    has_begun.set()
    ps.send(b"x")
    assert [*ps] == []  # this ends: the ps, too, counts the worker as lost
    begun.join(SECS)
    assert said == [("break", False), ("loss", False)]


def test_a_worker_that_ends_looks_for_no_ps_any_more():
    (host,) = free_addresses(1)
    ended = threading.Event()
    names = {field.name for field in dataclasses.fields(LinkEvents)} - {"lock"}
    events = LinkEvents(threading.RLock(), **dict.fromkeys(names, lambda *arguments: ended.set()))
    network = link.SocketNetwork(ConnectConfig(["a:1"], 0, [host], 100 * SECS), 100)
    begun = network.open(0, "Exchange", events, waits=False)
    begun.start()
    begun.end()
    network.close()
    begun.join(SECS)
    assert not begun._thread.is_alive()
    assert not ended.is_set()
