"""The messages of asynchronous training: calls with content of any length, and replies.

The act of a call (`Call.act`, see terngrad/service/messages.py) says what it asks for:

MORE: more content of the previous call.
ENTER: the first call of a channel; content: JSON, see `entry`.
BEGIN: from worker 0; content: JSON, a plan (terngrad/asynchronous/plan.py).
STATE: from worker 0, after BEGIN; content: the initial state.
PUSH: content: a gradient; the reply is as for PULL.
PULL: the reply has the parameters.
FETCH: the reply has the whole state.
BYE: the worker ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from terngrad.asynchronous.fields import UNREADABLE
from terngrad.connect.channel import FrameError
from terngrad.service.messages import PIECE_BYTES, Reply, join_frame, split_frame

MORE, ENTER, BEGIN, STATE, PUSH, PULL, FETCH, BYE = range(8)


class CallError(ValueError):
    """A worker's call cannot be answered; the text says why."""


def frames(header: Any, content: bytes | memoryview = b"") -> Iterator[bytes]:
    """Yields the frames of a call or reply with its content; sets the header's size."""
    view = memoryview(content).cast("B")
    header.size = view.nbytes
    yield join_frame(header, view[:PIECE_BYTES])
    empty = type(header)()
    for start in range(PIECE_BYTES, view.nbytes, PIECE_BYTES):
        yield join_frame(empty, view[start : start + PIECE_BYTES])


def collect(
    header: Any, first: memoryview, messages: Iterator[bytes], count: list[int] | None = None
) -> bytearray:
    """Returns the content of a call or reply, of which the first frame was read.

    Args:
      header: header of the first frame; the caller has checked its size.
      first: content of the first frame.
      messages: the following frames.
      count: its element is increased by the bytes of the frames that are read here.

    Raises:
      FrameError: there is less or more content than the header announced.
    """
    content = bytearray(header.size)
    done = _put(content, 0, first)
    while done < header.size:
        message = next(messages, None)
        if message is None:
            raise FrameError(f"content ends after {done} of {header.size} bytes")
        following, piece = split_frame(message, type(header))
        if following != type(header)() or not piece.nbytes:
            raise FrameError(f"another message after {done} of {header.size} bytes")
        done = _put(content, done, piece)
        if count is not None:
            count[0] += len(message)
    return content


def _put(content: bytearray, start: int, piece: memoryview) -> int:
    end = start + piece.nbytes
    if end > len(content):
        raise FrameError(f"more content than the {len(content)} bytes announced")
    content[start:end] = piece
    return end


def exactly(size: int) -> range:
    """Returns the sizes of a content that has `size` bytes and no others."""
    return range(size, size + 1)


def sizes_text(sizes: Iterable[range]) -> str:
    """Returns sizes in words, such as "512 or 16 to 64"."""
    texts = (f"{own[0]} to {own[-1]}" if len(own) > 1 else str(own[0]) for own in sizes)
    return " or ".join(texts) or "0"


class RunStatus(NamedTuple):
    """The status of a run.

    Attributes:
      run: name of the run whose parameters the ps holds; "" for none.
      version: number of updates that the ps has applied.
      waits: whether worker 0 must first begin or confirm the run.
      finished: whether the run has all its updates.
    """

    run: str
    version: int
    waits: bool
    finished: bool


def status_in(reply: Reply) -> RunStatus:
    """Returns the status in a reply."""
    return RunStatus(reply.run, reply.version, reply.waits, reply.finished)


def entry(run: str, configuration: Mapping[str, str]) -> bytes:
    """Returns the content of ENTER: the worker's last run, "" for none, and its configuration."""
    return json.dumps({"run": run, "configuration": dict(configuration)}).encode()


def read_entry(content: bytes | bytearray) -> tuple[str, dict[str, str]]:
    """Returns a worker's run and its configuration; raises CallError if the JSON is malformed."""
    try:
        values = json.loads(bytes(content))
        return str(values["run"]), {str(k): str(v) for k, v in values["configuration"].items()}
    except UNREADABLE:
        raise CallError(
            'the content of ENTER must be JSON of the form {"run": "", "configuration": {}}'
        ) from None
