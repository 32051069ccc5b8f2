"""A link that is refused, and one that opens a stream while it ends."""

import threading

import grpc
import pytest

from terngrad.service import link
from terngrad.service.calls import RefusedError
from terngrad.service.network import LinkEvents
from terngrad.service.streams import Outbox, hello
from terngrad.testing.limits import HANG_SECS


class Call(list):
    """A stream that has ended; its items are the messages from the ps."""

    def code(self):
        return grpc.StatusCode.OK

    def details(self):
        return ""


@pytest.fixture(name="begin")
def _begin(monkeypatch):
    """Starts a link that opens streams with a function."""

    def begin(open_stream, **events):
        monkeypatch.setattr(link, "open_stream", lambda *arguments: open_stream())
        monkeypatch.setattr(link, "_PAUSE_SECS", 0.01)
        ignore = lambda *arguments: None
        names = ("on_message", "on_break", "on_open", "on_loss", "on_refusal")
        calls = LinkEvents(threading.RLock(), **dict.fromkeys(names, ignore) | events)
        introduction = hello(0, 0, ["ps0:1"], ["a:1"])
        begun = link.GrpcLink(None, "Exchange", introduction, 10.0, calls, waits=False)
        begun.start()
        return begun

    return begin


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


def test_a_stream_that_opens_while_its_link_ends_gets_the_last_message(begin):
    opening, ended = threading.Event(), threading.Event()
    outbox = Outbox()

    def open_stream():
        opening.set()
        assert ended.wait(HANG_SECS)
        return Call(), outbox

    begun = begin(open_stream)
    assert opening.wait(HANG_SECS)
    begun.end(b"goodbye")
    ended.set()
    begun.join(HANG_SECS)
    outbox.close()
    assert list(outbox) == [b"goodbye"]
