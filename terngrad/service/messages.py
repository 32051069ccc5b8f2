"""The messages between workers and parameter servers, as protobuf encodes them; no compiler needed.

On the coordination stream ps 0 sends Views: which workers make steps together, and from which step
on. When a worker joins or leaves, or a channel breaks, the workers abandon their current steps and
report their states. Then ps 0 sends a new view. A worker at another step than the view's, or one
that has just started, receives the state of an up-to-date worker. Sets of workers are bits: worker
i is bit i % 8 of byte i / 8.

On the exchange stream a worker declares each operation once. At each step it pushes its part of the
operation in pieces, and names its view and the workers whose parts make the result, the
contributors. When all contributors have pushed a piece, the ps sends the result to every worker
that asked. If there are two workers, a contributor gets the other's codes, and adds its own. The ps
holds no parameters. Before its first push, each worker tells each ps the view that it is in, and
the ps tells the workers in that view who they are. Workers push when all contributors are in the
view; a ps keeps no other pushes.

In asynchronous training (terngrad/asynchronous/) the ps holds the parameters. A worker has one
Update channel to each ps. The worker sends one call at a time, and the ps replies.

docs/wire-format.md describes the bytes. A frame is a message with a payload, which is not copied
when it is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from terngrad.connect.channel import FrameError

_PACKAGE = "terngrad"
_Type = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Type.TYPE_BOOL,
    "bytes": _Type.TYPE_BYTES,
    "string": _Type.TYPE_STRING,
    "uint32": _Type.TYPE_UINT32,
    "uint64": _Type.TYPE_UINT64,
}


@dataclasses.dataclass(frozen=True)
class Field:
    """A field: its number, a scalar type or a message, and how often it occurs."""

    number: int
    type: str
    one_of: bool = False  # at most one of the fields marked so is set: WhichOneof("what")
    repeated: bool = False
    optional: bool = False  # HasField says whether it is there


# What workers do together: the same on all of them. The name of an operation on gradients begins
# with the layout's fingerprint, so that operations of different layouts never mix.
_OPERATION = {
    "index": Field(1, "uint32"),  # counts from 0 in the order of declaration on this channel
    "name": Field(2, "string"),
    "kind": Field(3, "uint32"),  # see `operations.Kind`
    "items": Field(4, "uint64"),  # floats, or groups of 32 codes
    "local_nodes": Field(5, "uint32"),  # of each worker
    "max_code": Field(6, "uint32"),  # CODES: largest magnitude of a node's; left out where 1
}

_HEADER = {
    "step": Field(1, "uint64"),  # of training
    "operation": Field(2, "uint32"),  # index
    "piece": Field(3, "uint32"),  # counts from 0; long operations travel in pieces
    "declared": Field(4, "Operation"),  # a declaration; no other field is set
    "bye": Field(5, "bool"),  # the worker ends
    "failed": Field(6, "string"),  # with bye: the reason; "" if all is done
    "view": Field(7, "uint64"),  # that makes the step; 0 is none
    "contributors": Field(8, "bytes"),  # workers whose parts make the result
    "gone": Field(9, "bool"),  # from the ps: it has dropped this result
    # The worker is in this view from now on, whose members are the contributors; from the ps:
    # those that are in it there.
    "enters": Field(10, "bool"),
    "coordinator": Field(11, "uint32"),  # with enters: the ps that made the view
    # The worker has lost the coordinator of the view and asks this one, the `step`-th since then;
    # from the ps: another worker has.
    "seeks": Field(12, "bool"),
}

# From a worker to ps 0.
_REPORT = {
    "state_report": Field(1, "StateReport", one_of=True),
    "value": Field(2, "Value", one_of=True),
    "ready": Field(3, "uint64", one_of=True),  # it has gradients of this step
    "progress": Field(4, "Progress", one_of=True),
    "failed": Field(5, "string", one_of=True),  # it ends for this reason, and all others must end
    "bye": Field(6, "bool", one_of=True),  # it ends, and all is done
    "state": Field(7, "StatePart", one_of=True),  # for the workers that wait for it
    "is_required_in_next_step": Field(8, "bool", one_of=True),  # its next gradients must count
    "lost_ps": Field(9, "bytes", one_of=True),  # ps that it does without: bits, as for workers
    "shared": Field(10, "bool"),  # with failed: all workers fail so, none of them is to blame
    "ended_ps": Field(11, "bytes", one_of=True),  # ps at whose addresses nobody listens
    # Ps that ended a stream in the last view, after which nobody listened there.
    "ended_in_view": Field(13, "bytes", one_of=True),
    "leaves": Field(12, "bool", one_of=True),  # it ends, and the others go on without it
    "has_state": Field(14, "uint64", one_of=True),  # it has received the state of this view
}

# The state of a worker, which then waits for a view.
_STATE_REPORT = {
    "steps": Field(1, "uint64"),  # made so far
    "is_live": Field(2, "bool"),  # it trains already; false: it has just started
    "view": Field(3, "uint64"),  # last view that it knows
    "members": Field(4, "bytes"),  # of that view
    "coordinator": Field(5, "uint32"),  # the ps that made it
}

# A value that each worker gives and all workers see; see `longest_value`. Workers give some values
# repeatedly: the round then counts the times, or is the number of a view. Ps 0 keeps the last two
# rounds of the names that were used last; who asks for older ones gets no values.
_VALUE = {
    "name": Field(1, "string"),
    "content": Field(2, "bytes"),
    "round": Field(3, "uint64"),
}

# How far a worker is; see terngrad/cluster/progress.py.
_PROGRESS = {
    "is_stepping": Field(1, "bool"),
    "batches": Field(2, "uint64"),
    "operations": Field(3, "uint64"),  # begun with the others, where it counts them
    "operation": Field(4, "string"),  # name of the last of them
    "alike": Field(5, "uint64"),  # how many of the last ones have that name
}

# From ps 0 to a worker.
_ORDER = {
    "report_state": Field(1, "bool", one_of=True),  # abandon the step and report your state
    "view": Field(2, "View", one_of=True),
    "go": Field(3, "Go", one_of=True),
    "values": Field(4, "Values", one_of=True),
    "end": Field(5, "string", one_of=True),  # the training ends, for this reason
    "state": Field(6, "StatePart", one_of=True),
    "finished": Field(7, "bool", one_of=True),  # it is done; there is nothing to join
    "saver": Field(8, "uint32", optional=True),  # with end: saves the steps made so far
    "lost_ps": Field(9, "bytes", one_of=True),  # that others do without: do not wait for them
}

# A part of a donor's state, at most 512 KB; an empty part is the last.
_STATE_PART = {
    "view": Field(1, "uint64"),
    "content": Field(2, "bytes"),
}

# Which workers make steps together.
_VIEW = {
    "number": Field(1, "uint64"),  # grows
    "steps": Field(2, "uint64"),  # made so far; the next one has this number
    "members": Field(3, "bytes"),
    "needed": Field(4, "uint32"),  # members whose gradients make a step
    "donor": Field(5, "uint32"),  # gives its state of `steps` steps to the receivers
    "receivers": Field(6, "bytes"),
    "is_first": Field(7, "bool"),  # nobody has made a step in this training
    "lost_ps": Field(8, "bytes"),  # ps whose pieces the others take over
    "coordinator": Field(9, "uint32"),  # the ps that made it: another than 0 with own servers only
    "saver": Field(10, "uint32"),  # the member that saves
}

# Which members make a step, where fewer than all are needed.
_GO = {
    "step": Field(1, "uint64"),
    "contributors": Field(2, "bytes"),
}

_VALUES = {
    "name": Field(1, "string"),
    "workers": Field(2, "uint32", repeated=True),
    "contents": Field(3, "bytes", repeated=True),  # one for each of the workers
    "round": Field(4, "uint64"),
}

# A call's content travels in pieces. The first has the whole header; the others have an empty one.
_CALL = {
    "act": Field(1, "uint32"),  # see terngrad/asynchronous/messages.py
    "size": Field(2, "uint64"),  # bytes of the content, in all pieces
    "incarnation": Field(3, "uint64"),  # ENTER: differs between processes of a worker
    "sequence": Field(4, "uint64"),  # PUSH: counts from 1 in a worker's process
    # PUSH: of the parameters that gave the gradient; STATE: of the state.
    "version": Field(5, "uint64"),
    "done": Field(6, "bool"),  # BYE: the run is complete
    "stop": Field(7, "bool"),  # BYE of worker 0: it ends the run before it is complete
    "saved": Field(8, "bool"),  # BYE of worker 0: the state of the ps is in a checkpoint
    "last": Field(9, "bool"),  # FETCH of worker 0: pushes wait until its BYE or its loss
    "failed": Field(10, "string"),  # BYE of worker 0, as its first call: why it begins no run
    # PUSH, PULL: number of the worker's copy of the parameters, of an earlier reply; 0 = none.
    "copy": Field(11, "uint64"),
}

_REPLY = {
    "size": Field(1, "uint64"),  # bytes of the content, in all pieces
    "version": Field(2, "uint64"),  # number of updates that this ps has applied
    "run": Field(3, "string"),  # run whose parameters the ps holds; "" for none
    "waits": Field(4, "bool"),  # for worker 0 to begin or to confirm the run
    "finished": Field(5, "bool"),  # the run is complete
    "stopped": Field(6, "bool"),  # worker 0 ended the run
    "staleness": Field(7, "uint32", repeated=True),  # to worker 0: of updates since its last push
    "saved": Field(8, "bool"),  # stopped, and the state is in a checkpoint
    "failed": Field(9, "string"),  # why worker 0 has begun no run
    "copy": Field(10, "uint64"),  # number of the worker's copy after this reply
    # The content is the change of the copy that the call named, not the parameters.
    "coded": Field(11, "bool"),
}

MESSAGES = {
    "Operation": _OPERATION,
    "Header": _HEADER,
    "Report": _REPORT,
    "StateReport": _STATE_REPORT,
    "Value": _VALUE,
    "Progress": _PROGRESS,
    "Order": _ORDER,
    "StatePart": _STATE_PART,
    "View": _VIEW,
    "Go": _GO,
    "Values": _VALUES,
    "Call": _CALL,
    "Reply": _REPLY,
}


def make_classes(messages: Mapping[str, Mapping[str, Field]] = MESSAGES) -> Mapping[str, Any]:
    """Returns the class of each message, by its name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="terngrad.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in messages.items():
        _declare(file.message_type.add(name=name), fields)
    pool = descriptor_pool.DescriptorPool()  # a private one
    pool.Add(file)
    found = message_factory.GetMessageClassesForFiles([file.name], pool)
    return {name: found[f"{_PACKAGE}.{name}"] for name in messages}


def _declare(message: descriptor_pb2.DescriptorProto, fields: Mapping[str, Field]) -> None:
    if any(field.one_of for field in fields.values()):
        message.oneof_decl.add(name="what")
    for name, field in fields.items():
        many = _Type.LABEL_REPEATED if field.repeated else _Type.LABEL_OPTIONAL
        declared = message.field.add(name=name, number=field.number, label=many)
        if field.type in _SCALARS:
            declared.type = _SCALARS[field.type]
        else:
            declared.type, declared.type_name = _Type.TYPE_MESSAGE, f".{_PACKAGE}.{field.type}"
        if field.one_of:
            declared.oneof_index = 0
        if field.optional:  # proto3 wants a group of its own for it
            declared.proto3_optional, declared.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")


_HEADER_TAG, _PADDING_TAG, _PAYLOAD_TAG = b"\x0a", b"\x12", b"\x1a"  # fields 1 to 3, bytes
_ALIGNMENT = 4  # bytes of the largest numbers in payloads
_LONGEST_HEADER = 1 << 14  # bytes; the contributors alone can take half of it

PIECE_BYTES = 1 << 20  # of a push: smaller ones cost more time a byte, larger ones delay results
LONGEST_PUSH = PIECE_BYTES + (1 << 14)  # bytes of a message to a ps
# A result has more planes than a push: up to 18 instead of 2.
LONGEST_RESULT = 9 * PIECE_BYTES + (1 << 14)  # bytes of a message from a ps

LONGEST_VALUE = 1 << 16  # bytes
LONGEST_NAME = 256  # characters of a value's name
_BESIDE_VALUES = 4 * LONGEST_NAME + 64  # bytes of a message of values beside these
_BESIDE_VALUE = 16  # bytes beside each: its worker, and its length

_classes = make_classes()
Header = _classes["Header"]
Report = _classes["Report"]
Order = _classes["Order"]
StateReport = _classes["StateReport"]
View = _classes["View"]
ValueMessage = _classes["Value"]
Values = _classes["Values"]
OperationMessage = _classes["Operation"]
Call = _classes["Call"]
Reply = _classes["Reply"]


def longest_value(workers: int) -> int:
    """Returns the most bytes of a value that each of the workers gives: one message has all.

    It is a multiple of 8, for numbers of any type.
    """
    share = (LONGEST_RESULT - _BESIDE_VALUES) // workers - _BESIDE_VALUE
    return min(LONGEST_VALUE, share // 8 * 8)


def join_frame(header: Any, payload: bytes | memoryview = b"") -> bytes:
    """Returns the bytes of a frame; copies the payload once.

    Args:
      header: a `Header`, `Call` or `Reply`.
      payload: numbers, little-endian.
    """
    head = header.SerializeToString()
    size = len(payload) if isinstance(payload, bytes) else payload.nbytes
    before = b"".join((_HEADER_TAG, _varint(len(head)), head))
    tag = _PAYLOAD_TAG + _varint(size)
    return b"".join((before, _padding(len(before) + len(tag)), tag, payload))


def split_frame(data: bytes | memoryview, kind: Any = Header) -> tuple[Any, memoryview]:
    """Returns the header and the payload of a frame; the payload shares memory with `data`.

    The payload's numbers are aligned if the sender padded the frame, as `join_frame` does.

    Args:
      data: the bytes of the frame.
      kind: class of the header.

    Raises:
      FrameError: `data` is not a frame; the message names the invalid part.
    """
    view = memoryview(data)
    if data[:1] != _HEADER_TAG:
        raise FrameError("a frame does not begin with its header")
    size, start = _read_varint(data, 1)
    if size > (allowed := min(_LONGEST_HEADER, len(data) - start)):
        raise FrameError(
            f"a frame of {len(data)} bytes has a header of {size}; allowed are {allowed}"
        )
    try:
        header = kind.FromString(view[start : start + size])
    except DecodeError:
        raise FrameError(
            f"a frame has a header that is not a valid {kind.DESCRIPTOR.name}"
        ) from None
    end = start + size
    if end == len(data):  # other implementations omit empty fields
        return header, view[end:]
    if data[end : end + 1] == _PADDING_TAG:
        size, start = _read_varint(data, end + 1)
        end = start + size
        if size >= _ALIGNMENT:
            raise FrameError(
                f"a frame has {size} bytes of padding; allowed are 0 to {_ALIGNMENT - 1}"
            )
    if data[end : end + 1] != _PAYLOAD_TAG:
        raise FrameError("a frame has no payload after its header")
    size, start = _read_varint(data, end + 1)
    if start + size != len(data):
        raise FrameError(f"a payload has {size} bytes; the frame has {len(data) - start} left")
    return header, view[start:]


def _padding(size: int) -> bytes:
    """Returns a field that aligns the bytes after the first `size`; b"" if none is needed."""
    missing = -size % _ALIGNMENT
    if not missing:
        return b""
    filled = (missing - 2) % _ALIGNMENT  # tag and length take two bytes
    return _PADDING_TAG + _varint(filled) + bytes(filled)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_varint(data: bytes | memoryview, start: int) -> tuple[int, int]:
    """Returns the number that begins at `start`, and the index after its end."""
    value = 0
    for i, octet in enumerate(data[start : start + 5]):
        value |= (octet & 0x7F) << 7 * i
        if octet < 0x80:
            return value, start + i + 1
    raise FrameError("a frame ends within a number")
