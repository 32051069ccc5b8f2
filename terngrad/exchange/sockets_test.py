"""Operations of the native mesh as TensorFlow sees them; several processes are threads here."""

import contextlib
import dataclasses
import resource
import socket
import threading

import numpy as np
import pytest
import tensorflow as tf

from terngrad import ternary
from terngrad.cluster.errors import MembershipError
from terngrad.cluster.peer_sockets import PeerSockets
from terngrad.codecs.factory import make_codecs
from terngrad.connect.config import ConnectConfig
from terngrad.connect.tls import TlsContexts
from terngrad.draws import DrawKey
from terngrad.exchange import sockets
from terngrad.exchange.exchange import LocalBucket
from terngrad.layout import MAX_CODES, SUM_CODEC_NAMES, Policy, make_layout
from terngrad.ops import library
from terngrad.ops.gradient_kernels import EncodeInputs
from terngrad.ops.mesh import Decoding, Encoding, Mesh, MeshKind
from terngrad.ops.native import NativeKernels
from terngrad.testing.addresses import free_addresses
from terngrad.testing.certificates import make_certificates
from terngrad.testing.conformance import bucket_of
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.threads import in_threads
from terngrad.training.reduction import Reduction

TIMEOUT_SECS = HANG_SECS


pytestmark = pytest.mark.usefixtures("native_library")


@pytest.fixture(scope="module", name="tls")
def _tls(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"), "ours", "all")


def together(size, act, tls=None):
    """What `act(transport)` returns or raises in each of `size` processes."""
    hosts, found, contexts = free_addresses(size), [None] * size, tls and TlsContexts(tls)
    acted = [threading.Event() for _ in range(size)]

    def run(rank):
        config = ConnectConfig(hosts, rank, (), TIMEOUT_SECS, contexts)
        started = sockets.start(config, b"secret")
        with contextlib.closing(started) as transport:
            try:
                found[rank] = act(transport)
                acted[rank].set()
            except (ValueError, tf.errors.OpError) as error:
                found[rank] = error
                acted[rank].set()
                for each in acted:  # else this process' end might be another one's reason
                    each.wait(TIMEOUT_SECS)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECS)
        assert not thread.is_alive()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_operations_move_tensors_of_every_type(size, encrypted, tls):
    def act(transport):
        rank = transport.rank
        part = tf.constant([[rank, 1], [2, 3]], tf.int64)
        flags = tf.constant([rank == 1, True])
        parts = tf.reshape(tf.range(size * 3) + 100 * rank, [size, 3])
        return [
            transport.all_gather(part, "a").numpy(),
            transport.all_gather(flags, "b").numpy(),
            transport.all_to_all(parts, "c").numpy(),
            transport.broadcast(tf.constant(5.5 + rank), "d").numpy(),
            transport.sum_floats(tf.range(20.0) + rank, "e")[0].numpy(),
        ]

    for rank, found in enumerate(together(size, act, tls if encrypted else None)):
        everybody = range(size)
        np.testing.assert_array_equal(found[0], [[[i, 1], [2, 3]] for i in everybody])
        np.testing.assert_array_equal(found[1], [[i == 1, True] for i in everybody])
        mine = [np.arange(3 * rank, 3 * rank + 3) + 100 * i for i in everybody]
        np.testing.assert_array_equal(found[2], mine)
        assert found[3] == 5.5
        np.testing.assert_array_equal(found[4], size * np.arange(20.0) + sum(everybody))


def test_only_variables_that_differ_are_copied_from_the_chief():
    def act(transport):
        copied, broadcast = [], transport.broadcast
        transport.broadcast = lambda value, name: copied.append(name) or broadcast(value, name)
        values = (7, [1.5, float(transport.rank)], [[float("nan")]], [transport.rank == 1])
        state = [tf.Variable(value) for value in values]
        assert transport.synchronize(state[:1]) and transport.synchronize(state)
        assert np.isnan(state[2].numpy()).all()
        return copied, [state[i].numpy().tolist() for i in (0, 1, 3)]

    assert together(3, act) == [(["copy/2", "copy/1"], [7, [1.5, 0.0], [False]])] * 3


def test_states_of_several_trainings_are_copied_whatever_their_sizes_and_types():
    states = ([1.0], tf.float32), ([1.0] * 5, tf.bfloat16), ([1, 1, 1], tf.int64)

    def act(transport):
        state = [tf.Variable(tf.cast(value, dtype) * transport.rank) for value, dtype in states]
        for variable in state:
            transport.synchronize([tf.Variable(0, dtype=tf.int64), variable])
        return [variable.numpy().tolist() for variable in state]

    assert together(2, act) == [[[0.0], [0.0] * 5, [0, 0, 0]]] * 2


def test_connections_that_somebody_between_has_exchanged_are_refused(tls, monkeypatch):
    """The workers have one host, and so certificates that are as good for each other."""
    hosts, connect, contexts = free_addresses(3), PeerSockets.connect, TlsContexts(tls)

    def exchanged(own):
        found = connect(own)
        return {1: found[2], 2: found[1]} if 1 in found and 2 in found else found

    monkeypatch.setattr(PeerSockets, "connect", exchanged)
    config = lambda rank: ConnectConfig(hosts, rank, (), TIMEOUT_SECS, contexts)
    start = lambda rank: lambda: sockets.start(config(rank), b"secret")
    errors = in_threads(*map(start, range(3)))
    assert all(isinstance(error, MembershipError) for error in errors), errors
    why = "it opened this TLS connection under another name"
    assert str(errors[0]).startswith(f"worker 1 ({hosts[1]}): {why}: it belongs to another pair")


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_law_7_the_mesh_sends_the_bytes_that_the_exchange_counts(size):
    from terngrad.ops.native import NativeKernels

    codes, values = tf.ones([101, 2], tf.uint32), tf.range(1001.0)
    digits = tf.concat([codes, codes], 1)  # -1 in four planes

    def act(transport):
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
        exchange = transport.exchange(1, NativeKernels(), step)
        run = tf.function(
            lambda: (
                exchange.sum_codes(bucket_of([codes], "sum", 1)).result,
                exchange.sum_codes(bucket_of([digits], "digits", 4)).result,
                exchange.float_sum([[values, values[:9]]], "floats"),
                exchange.max([values[:7]], "max"),
                exchange.mean([[values[:3]]], "few"),
            ),
            autograph=False,
        )
        for _ in range(3):
            run()
        return transport.mesh.octets, (int(exchange.bytes_sent), int(exchange.bytes_received))

    for octets, counted in together(size, act):
        assert octets == counted
        assert size == 1 or octets[0] > 3 * 4 * 1001


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_law_5_a_sum_that_is_decoded_in_parts_has_the_bits_of_the_whole(size):
    from terngrad.ops.native import NativeKernels

    shapes = [(70000, 30), (1,), (0,), (37,)]  # several chunks, and words that variables share
    rows = -(-sum(int(np.prod(shape)) for shape in shapes) // 32)
    units, kernels = tf.constant([0.5, 2.0, 1.0, 0.0]), NativeKernels()

    def act(transport):
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
        exchange = transport.exchange(1, kernels, step)
        given = np.random.default_rng(transport.rank).integers(0, 2**32, (2, rows), np.uint32)
        codes = tf.constant(np.stack([given[0] | given[1], given[1]], 1))  # -1 is 11 in binary
        bucket = LocalBucket("parts", 1, lambda: [codes], tuple(range(4)), shapes, units)

        @tf.function(autograph=False)
        def run():
            sums = exchange.sum_codes(
                dataclasses.replace(bucket, name="whole", decoded=False)
            ).result
            whole = kernels.decode(sums.words, units, sums.nodes, shapes)
            return whole, exchange.sum_codes(bucket).result

        return run()

    for whole, parts in together(size, act):
        assert float(tf.reduce_max(tf.abs(whole[0]))) > 0
        for one, other in zip(whole, parts, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "encoder", "antithetic"),
    [
        *[(size, "ternary", False) for size in (1, 2, 3, 4)],
        *[(2, "ternary", True), (3, "15-level", True), (2, "255-level", False)],
    ],
)
def test_law_5_codes_that_leave_while_others_are_encoded_have_the_same_bits(
    size, encoder, antithetic
):
    from terngrad.ops.native import NativeKernels

    shapes, variables = [(70000, 70), (1,), (0,), (37,)], (4, 0, 7, 2)
    bounds, scales = tf.constant([1.5, np.inf, 1.0, 2.0]), tf.constant([1.5, 3.0, 1.0, 2.0])
    kernels, max_code = NativeKernels(), MAX_CODES[encoder]
    units = ternary.unit(scales, max_code)

    def act(transport):
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
        exchange = transport.exchange(1, kernels, step)
        rank = transport.rank
        given = [tf.random.stateless_normal(s, [rank, i]) for i, s in enumerate(shapes)]
        words = tf.constant(3, tf.uint64), tf.constant(5, tf.int64), tf.constant(rank)
        key = DrawKey(*words, antithetic)

        encode = lambda: [kernels.encode(given, variables, bounds, scales, key, encoder)]
        apart = LocalBucket("apart", max_code, encode, variables, shapes, units)
        inputs, whole = EncodeInputs(given, bounds, scales, key), []  # needs no whole bucket
        parts = dataclasses.replace(apart, encode=whole.pop, encoder=encoder, nodes=[inputs])

        @tf.function(autograph=False)
        def run():
            found = exchange.sum_codes(apart)
            early = exchange.sum_codes(dataclasses.replace(parts, name="at once"))
            codes, sums = exchange.sum_codes(dataclasses.replace(parts, name="sum", decoded=False))
            decoded = kernels.decode(sums.words, units, sums.nodes, shapes)
            return [[each.codes[0], *each.result] for each in (found, early)] + [[*codes, *decoded]]

        few, two = ({"name": "few", "shapes": [(1 << 22,)]}, {"name": "two"})
        for nodes, changes in ((1, few), (2, two)):
            with pytest.raises(IndexError):  # it is encoded as a whole
                transport.exchange(nodes, kernels, step).sum_codes(
                    dataclasses.replace(parts, **changes)
                )
        return [run() for _ in range(2)]

    for rounds in together(size, act):
        for apart, *others in rounds:
            assert float(tf.reduce_max(tf.abs(apart[1]))) > 0
            for at_once in others:
                for one, other in zip(apart, at_once, strict=True):
                    np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_law_4_sums_of_codes_that_come_from_gpus_have_the_bits_of_all_others():
    """Here the CPU is the GPU: what matters is that nothing but codes goes to the mesh."""
    from terngrad.ops.native import NativeKernels

    class OnGpu(NativeKernels):
        on_gpu = True

    shapes, one = [(70000, 70), (37,)], tf.ones([2])

    def act(transport):
        rank, found = transport.rank, []
        key = DrawKey(tf.constant(3, tf.uint64), tf.constant(5, tf.int64), tf.constant(rank))
        given = [tf.random.stateless_uniform(s, [rank, i], -1) for i, s in enumerate(shapes)]
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
        for kernels in (NativeKernels(), OnGpu()):
            exchange = transport.exchange(1, kernels, step)
            bucket = LocalBucket(
                type(kernels).__name__,
                1,
                lambda kernels=kernels: [kernels.encode(given, (0, 1), one, one, key)],
                (0, 1),
                shapes,
                one,
                encoder="ternary",
                nodes=[EncodeInputs(given, one, one, key)],
            )
            codes, means = exchange.sum_codes(bucket)
            other = dataclasses.replace(bucket, name=f"{bucket.name}/sums", decoded=False)
            found.append([*codes, *means, exchange.sum_codes(other).result.words])
        return found

    for of_cpu, of_gpu in together(2, act):
        assert float(tf.reduce_max(tf.abs(of_cpu[1]))) == 1.0
        for expected, result in zip(of_cpu, of_gpu, strict=True):
            np.testing.assert_array_equal(expected, result)


@pytest.mark.slow
def test_law_10_an_operation_that_cannot_begin_ends_with_an_error():
    codes, scales, one = tf.zeros([2, 2], tf.uint32), tf.ones([1]), tf.constant(1)
    key = DrawKey(tf.constant(3, tf.uint64), tf.constant(5, tf.int64), one)

    def act(transport):
        index = transport.mesh.declare("x", MeshKind.CODES, 2, (1, 1))

        join_codes = transport.mesh.join_codes

        def encode(elements, scales, decodes, index=index, encoder="ternary"):
            inputs = EncodeInputs([tf.ones([elements])], scales, scales, key)
            decoding = Decoding(scales, one, [[elements]]) if decodes else None
            return join_codes(Encoding(inputs, [0], encoder), index, [2, 2], decoding)

        with pytest.raises(tf.errors.InvalidArgumentError, match="nodes must be a scalar"):
            join_codes(codes, index, [2, 2], Decoding(scales, tf.constant(0), [(64,)]))
        for decodes in (True, False):
            with pytest.raises(tf.errors.InvalidArgumentError, match="shape of bounds is"):
                encode(64, tf.ones([2]), decodes)
            with pytest.raises(tf.errors.InvalidArgumentError, match="x takes 16 bytes, not 24"):
                encode(65, scales, decodes)
            encode(64, scales, decodes)
        with pytest.raises(tf.errors.InvalidArgumentError, match="x takes 16 bytes, not 8"):
            transport.mesh.join(codes[:1], index, [2, 2])
        floats = transport.mesh.declare("floats", MeshKind.FLOATS, 4)
        with pytest.raises(tf.errors.InvalidArgumentError, match="floats does not give sums"):
            encode(64, scales, False, floats)
        with pytest.raises(tf.errors.InvalidArgumentError, match="there is no encoder quinary"):
            encode(64, scales, False, encoder="quinary")
        transport.close()
        with pytest.raises(tf.errors.UnavailableError, match="closed"):
            transport.mesh.join(codes, index, [2, 2])
        for decodes in (True, False):
            with pytest.raises(tf.errors.UnavailableError, match="closed"):
                encode(64, scales, decodes)
        return "tried"

    assert together(1, act) == ["tried"]


@pytest.mark.slow
def test_law_10_a_decoded_sum_names_the_process_that_left_and_what_does_not_fit():
    codes, nodes = tf.zeros([1 << 15, 2], tf.uint32), tf.constant(1)

    def act(transport):
        if transport.rank == 1:
            return None
        index = transport.mesh.declare("x", MeshKind.CODES, 1 << 15, (1, 3))
        decode = lambda elements: transport.mesh.join_codes(
            codes, index, [], Decoding(tf.ones([1]), nodes, [(elements,)])
        )
        wrong = "x does not give sums of codes of 32 elements"
        with pytest.raises(tf.errors.InvalidArgumentError, match=wrong):
            decode(32)
        return decode(1 << 20)

    found = together(3, act)
    for rank in (0, 2):
        assert isinstance(found[rank], tf.errors.UnavailableError)
        assert "worker 1 (127.0.0.1:" in str(found[rank])


def bits_a_value(size, sum_codec, values=1 << 18, steps=3):
    """Returns the bits that a worker sends, and that it receives, for a value of a gradient."""

    def act(transport):
        kernels, count = NativeKernels(), tf.Variable(0, dtype=tf.int64)
        policy = Policy(grad_bits=1, clip_factor=2.5, sum_codec=sum_codec)
        codecs = make_codecs(make_layout(["v/kernel"], [(values,)], policy), kernels)
        exchange = transport.exchange(1, kernels, count)
        reduction, means = Reduction(codecs, exchange, count, 3), []
        for step in range(steps):
            gradient = np.random.default_rng([transport.rank, step]).normal(size=values)
            keys = reduction.keys(tf.constant(step, tf.int64))
            found = reduction.reduce([[tf.constant(gradient, tf.float32)]], keys)
            reduction.remember(found)
            means.append(found.means[0].numpy())
        counted = exchange.bytes_sent, exchange.bytes_received
        return [8 * int(each) / values / steps for each in counted], means

    found = together(size, act)
    for _, means in found:
        np.testing.assert_array_equal(means, found[0][1])
    return np.mean([bits for bits, _ in found], axis=0)


@pytest.mark.slow
def test_law_7_coded_sums_take_as_few_bits_with_many_workers_as_with_few():
    """Its output has the figures of docs/slow-networks.md."""
    bits = {
        (kind, size): bits_a_value(size, kind) for kind in SUM_CODEC_NAMES for size in (2, 4, 8)
    }
    for (kind, size), (sent, received) in bits.items():
        print(f"{size} workers, sum_codec {kind}: {sent:.2f} bits sent, {received:.2f} received")
    each_way = {size: bits["ternary", size][0] * size / (size - 1) / 2 for size in (2, 4, 8)}
    assert each_way[8] == pytest.approx(each_way[2], rel=0.1)
    for size in (4, 8):
        assert (bits["ternary", size] < 0.85 * bits["exact", size]).all()


def test_law_10_an_operation_of_another_size_is_named():
    def act(transport):
        transport.all_gather(tf.zeros([3]), "x")
        with pytest.raises(ValueError, match="'x' cannot be declared: it has kind gather, 12 rows"):
            transport.all_gather(tf.zeros([4]), "x")
        return True

    assert together(1, act) == [True]


@pytest.mark.parametrize(
    ("largest", "path"), [((0, 2), ""), ((1, 65537), ""), ((1, 2), "no such path")]
)
def test_law_10_codes_that_no_kernel_adds_are_refused(largest, path):
    def act(transport):
        with pytest.raises(ValueError, match="'x' cannot be declared: codes of magnitudes"):
            transport.mesh.declare("x", MeshKind.CODES, 1, largest, path)

    together(1, act)


@pytest.mark.parametrize("left", [0, 1])
def test_law_10_a_mesh_that_may_open_no_more_files_names_their_limit(left):
    with socket.socket() as lowest:
        number = lowest.fileno()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    library.load()
    resource.setrlimit(resource.RLIMIT_NOFILE, (number + left, limits[1]))
    try:
        why = r"^worker 0: its sockets cannot be .*; the limit of open files \(ulimit -n\) is \d"
        with pytest.raises(ValueError, match=why):
            Mesh(0, ["worker 0"], {})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
