"""The wire format of docs/wire-format.md: no byte may change without a new version."""

import collections
import hmac
import json
import re
import socket
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from terngrad.asynchronous.copies import ChangeCode
from terngrad.asynchronous.gradient import Pushable, parts_by_ps
from terngrad.asynchronous.messages import collect, frames
from terngrad.asynchronous.row import make_shards
from terngrad.codecs.factory import make_codecs
from terngrad.connect.channel import Channel, ChannelEnd, Ending, FrameError, Outbox
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import MAGIC, Hello, frame, introduce
from terngrad.coordination import groups
from terngrad.coordination.states import Rules
from terngrad.draws import DrawKey
from terngrad.exchange.parameter_server.exchange import ParameterServerConnection
from terngrad.exchange.parameter_server.operations import Kind
from terngrad.exchange.parameter_server.server.aggregator import Aggregator
from terngrad.exchange.parameter_server.server.arithmetic import PackedArithmetic
from terngrad.exchange.parameter_server.server.catalogue import PushError
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.layout import Policy, make_layout
from terngrad.ops.packing import ReferencePacking
from terngrad.ops.reference import ReferenceKernels
from terngrad.planes import pack_integers
from terngrad.service.messages import (
    PIECE_BYTES,
    Call,
    Header,
    OperationMessage,
    Reply,
    join_frame,
    split_frame,
)
from terngrad.testing.addresses import free_ports
from terngrad.training.reduction import exchange_gradients

POLICY = Policy(grad_bits=1, float_layers=("b",))
LAYOUT = make_layout(["a/kernel", "a/bias", "b/bias"], [(7, 9), (5,), (3,)], POLICY)
GRADIENTS = [
    np.linspace(-1, 1, 63, dtype=np.float32).reshape(7, 9),
    np.array([0.5, -0.25, 0.0, 1.0, -1.0], np.float32),
    np.array([1.0, 2.0, 3.0], np.float32),
]
STEP, SECS = 12, 60.0

# Planes of 3 groups of 32 codes, the bias first: words of nonzeros and of negatives in turn.
CODES = (
    "38 9f af 35 30 9f af 35 00 26 7e 7f 00 00 00 00 0f 00 00 00 00 00 00 00",
    "f8 f9 11 00 f0 f9 11 00 00 08 f2 ef 00 00 00 00 0f 00 00 00 00 00 00 00",
)
SUMS = (  # of two workers of three; three planes: 3 words a group
    "c0 66 be 35 f8 ff bf 35 f0 ff bf 35 00 2e 8c 90 00 00 72 6f 00 00 00 00 "
    "00 00 00 00 0f 00 00 00 00 00 00 00"
)
SCALES = "00 00 80 3f 00 00 80 3f"
FLOATS, FLOAT_SUMS = "00 00 80 3f 00 00 00 40 00 00 40 40", "00 00 00 40 00 00 80 40 00 00 c0 40"
PREFIX = "30 35 37 30 30 64 37 61 34 33 35 36 34 61 30 34 32 33 36 35 65 66 37 35 39 35 35 33 35 37"
VIEW = "38 .. .. .. .. .. .. 42 01 03"  # a number from a clock; contributors 0 and 1
DECLARED = {
    "max": (
        f"0a 37 22 35 12 2d {PREFIX} 32 36 2f 62 75 63 6b 65 74 20 30 2f 6d 61 78 18 01 20 02 "
        "28 01 12 03 00 00 00 1a 00"
    ),
    "codes": (
        f"0a 3b 22 39 08 01 12 2f {PREFIX} 32 36 2f 62 75 63 6b 65 74 20 30 2f 63 6f 64 65 73 "
        "18 02 20 03 28 01 12 03 00 00 00 1a 00"
    ),
    "floats": (
        f"0a 42 22 40 08 02 12 36 {PREFIX} 32 36 2f 66 6c 6f 61 74 20 62 75 63 6b 65 74 20 30 "
        "2f 66 6c 6f 61 74 73 18 03 20 03 28 01 12 00 1a 00"
    ),
}


@pytest.fixture(scope="module")
def traveled():
    """All messages of two workers and a ps in a step, in hexadecimal, without the view's number.

    Each with the times that it was sent.
    """
    sent: list[bytes] = []
    put = Outbox.put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outbox, "put", lambda self, m: (sent.append(bytes(m)), put(self, m)))
        hosts, workers = [f"127.0.0.1:{free_ports(1)[0]}"], ["one:1", "two:2"]
        arithmetic = PackedArithmetic(ReferencePacking())
        config = lambda rank: ConnectConfig(workers, rank, hosts, SECS)
        server = Server(config(0), arithmetic, Rules(2, False, SECS))
        server.start(hosts[0])
        clients = [Client(config(rank)) for rank in range(2)]
        try:
            with futures.ThreadPoolExecutor(2) as pool:
                list(pool.map(exchange_once, clients))
        finally:
            for client in clients:
                client.close(is_done=True)
            server.close()
    texts = (message.hex(" ") for message in sent)
    return collections.Counter(re.sub(r" 38( ..){6} 42 01 03", f" {VIEW}", text) for text in texts)


def exchange_once(client):
    """Exchanges the gradients of a worker through a ps."""
    connection, step = ParameterServerConnection(client), tf.Variable(STEP, dtype=tf.int64)
    connection.synchronize([step])
    kernels = ReferenceKernels()
    exchange, codecs = connection.exchange(1, kernels, step), make_codecs(LAYOUT, kernels)
    key = DrawKey(tf.constant(42, tf.uint64), tf.constant(STEP, tf.int64), tf.constant(client.rank))
    own = [tf.constant(gradient) for gradient in GRADIENTS]
    run = lambda: exchange_gradients([own], codecs, exchange, [key], ["/CPU:0"]).means
    return tf.function(run, autograph=False)()


@pytest.mark.parametrize("operation", sorted(DECLARED))
def test_golden_bytes_of_a_declaration(traveled, operation):
    assert DECLARED[operation] in traveled


def test_golden_bytes_of_an_entry_and_its_answer(traveled):
    assert f"0a 0c {VIEW} 50 01 1a 00" in traveled


@pytest.mark.parametrize("worker", range(2))
def test_golden_bytes_of_codes_that_are_pushed_and_then_sent_to_the_other_worker(traveled, worker):
    assert traveled[f"0a 0e 08 0c 10 01 {VIEW} 12 00 1a 18 {CODES[worker]}"] == 2


def answers(workers, by, pushed=CODES, items=3):
    """What a ps answers each worker in hexadecimal, where those of `by` push codes in step 5."""
    sent = {}
    arithmetic = PackedArithmetic(ReferencePacking())
    deliver = lambda worker, frame: sent.update({worker: frame})
    aggregator = Aggregator(workers, arithmetic, deliver, kept_steps=1)
    for worker in range(workers):
        message = OperationMessage(name="sum", kind=int(Kind.CODES), items=items, local_nodes=1)
        aggregator.declare(worker, message)
        members = groups.pack(range(workers))
        aggregator.enter(worker, Header(enters=True, view=1, contributors=members))
    for worker in range(workers):
        header = Header(step=5, view=1, contributors=groups.pack(by))
        codes = bytes.fromhex(pushed[worker % len(pushed)]) if worker in by else b""
        aggregator.push(worker, header, memoryview(codes))
    return [sent[worker].hex(" ") for worker in range(workers)]


def test_golden_bytes_of_the_sums_of_codes_of_all_contributors():
    assert answers(3, (0, 1)) == [f"0a 07 08 05 38 01 42 01 03 12 03 00 00 00 1a 24 {SUMS}"] * 3


def stream(*octets):
    """A stream of the prefix code in hexadecimal: whole words that begin with these bytes."""
    return bytes(octets).ljust(-(-len(octets) // 8) * 8, b"\0").hex(" ")


WHERE = " ".join(  # elements 2, 8, 9 and 383 of 384 differ from zero
    [stream(0), stream(5, *[0] * 10, 0x80), stream(2), stream(0x0E), stream(3)]
)
SPARSE = f"{WHERE} {stream(0x0A)}"  # +1, -1, +1 and -1


def test_golden_bytes_of_codes_in_the_prefix_code():
    codes = np.zeros(384, np.float32)
    codes[[2, 8, 9, 383]] = [1, -1, 1, -1]
    planes = pack_integers(tf.constant(codes), 2).numpy().reshape(-1).view(np.uint8)
    assert ReferencePacking().pack(planes.data, 1).hex(" ") == SPARSE
    header = "0a 07 08 05 38 01 42 01 03 12 03 00 00 00 1a 38"
    assert answers(2, (0, 1), [SPARSE], 12) == [f"{header} {SPARSE}"] * 2


def test_golden_bytes_of_sums_in_the_prefix_code():
    where = "0a 01 13 30 00 56 c8"  # which octets of 48 are not 0, and then those
    thrice = f"{stream(2)} 81 {where} 00 0a 16 16"  # signs; all are 3 or -3
    header = "0a 07 08 05 38 01 42 01 07 12 03 00 00 00 1a 14"
    assert answers(3, (0, 1, 2), [SPARSE], 12) == [f"{header} {thrice}"] * 3


def test_golden_bytes_of_codes_with_one_bit_each_where_many_differ_from_zero():
    planes = np.zeros((16, 2), "<u4")
    planes[:, 0], planes[0, 1] = 0x77777777, 7  # three of four, and only the first three negative
    packed = ReferencePacking().pack(planes.reshape(-1).view(np.uint8).data, 1)
    assert packed.hex(" ") == " ".join([stream(1), stream(*[0x77] * 64), stream(7, *[0] * 47)])


def test_golden_bytes_of_codes_that_the_prefix_code_does_not_make_shorter():
    planes = bytes.fromhex(CODES[0])
    assert ReferencePacking().pack(memoryview(planes), 1) == planes


def test_golden_bytes_of_scales_and_floats(traveled):
    assert f"0a 0c 08 0c {VIEW} 1a 08 {SCALES}" in traveled
    assert f"0a 0e 08 0c 10 02 {VIEW} 12 00 1a 0c {FLOATS}" in traveled
    assert f"0a 0e 08 0c 10 02 {VIEW} 12 00 1a 0c {FLOAT_SUMS}" in traveled


def test_golden_bytes_of_an_introduction():
    sent, hello = [], Hello("Exchange", 1, 0, ["a:1", "b:2"], ["p:1"], "r")
    introduce(hello, b"", sent.append, lambda: {"welcome": True})
    text = (
        '{"purpose": "Exchange", "worker": 1, "callee": 0, "worker_hosts": ["a:1", "b:2"], '
        '"ps_hosts": ["p:1"], "rules": "r", "timeout_secs": 60.0, "failed": "", "version": 16}'
    )
    size = "a7 00 00 00"
    assert sent == [b"terngrad\n" + bytes.fromhex(size) + text.encode()]
    assert frame({"welcome": 60.0}) == b'\x11\0\0\0{"welcome": 60.0}'
    assert MAGIC == b"terngrad\n"


def test_golden_bytes_of_a_proof():
    sent, secret = [], b"a secret of many characters"
    hello = Hello("Meet", 1, 0, ["a:1", "b:2"], ["p:1"])
    speaker = hmac.new(secret, digestmod="sha256")
    nonce = "000102030405060708090a0b0c0d0e0f"

    def answers():
        own = json.loads(sent[0][len(MAGIC) + 4 :])["nonce"]
        shown = hmac.new(secret, digestmod="sha256")
        text = b"ps 0 to worker 1 for Meet of p:1,a:1,b:2\n" + bytes.fromhex(own)
        shown.update(text + b"\n" + bytes.fromhex(nonce))
        speaker.update(b"worker 1 to ps 0 for Meet of p:1,a:1,b:2\n" + bytes.fromhex(nonce))
        speaker.update(b"\n" + bytes.fromhex(own))
        yield {"nonce": nonce, "proof": shown.hexdigest()}
        yield {"welcome": True}

    hear = answers()
    introduce(hello, secret, sent.append, lambda: next(hear))
    assert sent[1] == frame({"proof": speaker.hexdigest()})


def test_golden_bytes_of_a_channel():
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        here, _ = server.accept()
    with there:
        channel = Channel(here, 100, SECS)
        channel.send(b"message")
        channel._sent_at = 0.0
        channel.keep_alive()
        channel.end(Ending(ChannelEnd.REFUSED, "why"))
        assert (
            there.makefile("rb").read()
            == b'\7\0\0\0message\0\0\0\x80\x12\0\0\x80["refused", "why"]'
        )


def pushable():
    """Returns the gradient of a worker of an asynchronous training."""
    return Pushable(
        scales=tf.ones(2),
        units=tf.ones(2),
        words=tf.constant(np.frombuffer(bytes.fromhex(CODES[0]), "<u4").reshape(3, 2)),
        floats=tf.constant(np.pad(GRADIENTS[2], (0, 29))),
        statistics=tf.zeros(0),
    )


def test_golden_bytes_of_an_asynchronous_push():
    (content,) = parts_by_ps(pushable(), make_shards(LAYOUT, 1, 1, 0), ReferencePacking())
    (data,) = frames(Call(act=4, sequence=7, version=STEP), content)
    padding = " 00" * (29 * 4)
    header = "0a 09 08 04 10 a0 01 20 07 28 0c 12 00 1a a0 01"
    assert data.hex(" ") == f"{header} {SCALES} {FLOATS}{padding} {CODES[0]}"
    header, payload = split_frame(data, Call)
    assert (header.size, bytes(payload)) == (160, content)


def test_golden_bytes_of_a_change_of_an_asynchronous_workers_copy():
    (shard,) = make_shards(LAYOUT, 1, 1, 0)
    sizes = [own.size for own in shard.ranges]  # the padding of the bucket belongs to a/kernel
    assert sizes == [5, 63 + 28, 3 + 29]
    change = np.zeros(shard.size, np.float32)
    change[:5] = 1.0, -1.0, 1.0, -1.0, 1.0
    content = ChangeCode("ternary", sizes, ReferenceKernels()).write(change).content
    (data,) = frames(Reply(version=STEP, run="r", copy=5, coded=True), content)
    header = "0a 0b 08 2c 10 0c 1a 01 72 50 05 58 01 12 03 00 00 00 1a 2c"
    units = "00 00 80 3f 00 00 00 00 00 00 00 00"
    words = "1f 00 00 00 0a 00 00 00" + 3 * " 00 00 00 00 00 00 00 00"
    assert data.hex(" ") == f"{header} {units} {words}"


def test_content_beyond_a_piece_follows_in_frames_with_an_empty_header():
    content = bytes(range(256)) * (PIECE_BYTES // 256) + b"rest"
    first, second = frames(Reply(version=STEP), content)
    assert second.hex(" ") == "0a 00 1a 04 72 65 73 74"
    header, payload = split_frame(first, Reply)
    assert bytes(collect(header, payload, iter([second]))) == content


def test_numbers_of_every_payload_are_aligned(traveled):
    for text in (text for text in traveled if VIEW in text):
        data = bytes.fromhex(text.replace("..", "80", 5).replace("..", "01"))
        assert (len(data) - split_frame(data)[1].nbytes) % 4 == 0


def aggregator_with_codes(workers):
    """Returns a ps whose workers have declared a sum of 3 groups of codes, and a push for it."""
    aggregator = Aggregator(
        workers, PackedArithmetic(ReferencePacking()), lambda worker, frame: None
    )
    members = groups.pack(range(workers))
    for worker in range(workers):
        message = OperationMessage(name="sum", kind=int(Kind.CODES), items=3, local_nodes=1)
        aggregator.declare(worker, message)
        aggregator.enter(worker, Header(enters=True, view=1, contributors=members))
    header = Header(step=5, view=1, contributors=members)
    return aggregator, join_frame(header, bytes.fromhex(CODES[0]))


@given(
    st.integers(2, 3),
    st.lists(st.tuples(st.integers(0, 39), st.integers(1, 255)), min_size=1, max_size=6),
)
@settings(max_examples=300)
def test_law_10_a_changed_push_is_refused_or_fits_the_operations_size(workers, changes):
    aggregator, frame = aggregator_with_codes(workers)
    data = bytearray(frame)
    for place, value in changes:
        data[place % len(data)] ^= value
    try:
        header, payload = split_frame(bytes(data))
        aggregator.push(0, header, payload)
    except (FrameError, PushError):
        return
    assert payload.nbytes <= 24
    assert aggregator.memory_bytes in (0, len(data), 24)  # 24: it was opened
