"""How a worker opens a channel, and its messages about the end of one."""

import contextlib
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from terngrad.cluster.errors import MembershipError
from terngrad.connect.calling import ChannelOpener, why_ended
from terngrad.connect.channel import ChannelEnd, Ending
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import frame
from terngrad.testing.addresses import free_addresses


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (Ending(ChannelEnd.REFUSED, "why"), "ps 0 refused this worker: why"),
        (Ending(ChannelEnd.DONE), "ps 0 ended before this worker"),
        (Ending(ChannelEnd.CLOSED, "another run"), "ps 0 ended this worker's stream: another run"),
        (Ending(ChannelEnd.UNAVAILABLE, "full"), "ps 0 cannot apply gradients now: full"),
        (Ending(ChannelEnd.LOST, "reset"), "ps 0 died or cannot be reached: reset"),
        (Ending(ChannelEnd.SILENT, "nothing\nwas"), "ps 0 no longer answers: nothing was"),
        (None, "ps 0 ended this worker's stream: it was given up"),
    ],
)
def test_the_end_of_a_channel_is_explained(ending, text):
    assert why_ended(SimpleNamespace(ending=ending), "ps 0") == text


def opener(host, secs):
    return ChannelOpener(ConnectConfig(["a:1"], 0, [host], secs), "Exchange", 0, 100)


@contextlib.contextmanager
def answering(answer):
    """Yields a program that answers each caller with the same bytes, or never."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run():
            held = []
            with contextlib.suppress(OSError):
                while True:
                    held.append(listening.accept()[0])
                    held[-1].sendall(answer)

        threading.Thread(target=run, daemon=True).start()
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        yield lambda secs: opener(host, secs).open()
        listening.shutdown(socket.SHUT_RDWR)


def test_a_ps_that_hangs_is_lost_after_the_timeout():
    began = time.monotonic()
    with (
        answering(b"") as call,
        pytest.raises(MembershipError, match=r"within 1 s: it accepts connections but does"),
    ):
        call(1.0)
    assert time.monotonic() - began >= 1.0


def test_law_10_another_program_is_named():
    with (
        answering(frame({"hello": "world"})) as call,
        pytest.raises(MembershipError, match="the program there is not a process of this"),
    ):
        call(60.0)


def test_law_10_why_a_ps_refuses_is_one_line():
    with (
        answering(frame({"refused": "because\nof \x1b[2J"})) as call,
        pytest.raises(MembershipError, match=r"refused this worker: because of \\x1b\[2J$"),
    ):
        call(60.0)


def test_last_messages_to_a_ps_that_cannot_be_reached_are_given_up_without_an_error():
    (host,) = free_addresses(1)
    opening = opener(host, 0.1)
    with pytest.raises(MembershipError):
        opening.open()
    assert opening.send_last([b"why"]) is None


@pytest.mark.parametrize("said", ["NaN", "1" + 400 * "0", "-1", "0", "true", "null", '"x"'])
def test_law_10_an_invalid_time_out_in_the_welcome_is_replaced_by_the_own(said):
    text = b'{"welcome": ' + said.encode() + b"}"
    with answering(len(text).to_bytes(4, "little") + text) as call:
        channel = call(8.0)
    assert channel.beat_secs == 1.0
    channel.cut()


def test_it_is_known_that_nobody_listens_which_may_end_the_search_early():
    (host,) = free_addresses(1)
    opening = opener(host, 1000.0)
    with pytest.raises(MembershipError, match=r"within 0\.1 s: .*Connection refused"):
        opening.open(refused_secs=0.1)
    assert opening.nobody_listens
    with socket.create_server(("127.0.0.1", int(host.rpartition(":")[2]))):
        with pytest.raises(MembershipError, match="does not answer"):
            opening.open(secs=0.1, refused_secs=0.1)
        assert not opening.nobody_listens


def test_a_ps_that_was_reached_before_did_not_come_back():
    (host,) = free_addresses(1)
    with pytest.raises(MembershipError, match=r"did not come back within 0\.1 s: .*refused"):
        opener(host, 1000.0).open(refused_secs=0.1, was_there=True)
