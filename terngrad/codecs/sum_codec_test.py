"""Laws of means that the owners of shares code again."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from terngrad import planes
from terngrad.codecs.factory import find_codec, make_codecs, payloads
from terngrad.codecs.sum_codec import sum_codecs
from terngrad.draws import DrawKey
from terngrad.exchange.local import LocalExchange
from terngrad.layout import Policy, make_layout
from terngrad.planes import GROUP, SUM_BLOCK, share_of
from terngrad.testing.transport import EchoTransport
from terngrad.training.reduction import Reduction

NODES, STEPS = 3, 4
SHAPES = [(1500,), (7, 9), (0, 3), (1,), (45, 100)]  # in one bucket: no variable begins a block
NAMES = [f"v{i}/kernel" for i in range(len(SHAPES))]
_BACK = {"sum_codec": "ternary", "size_to_binarize": 0}
POLICIES = {
    "ternary": Policy(grad_bits=1, **_BACK),
    "clipped": Policy(grad_bits=1, clip_factor=2.5, **_BACK),
    "channel": Policy(grad_bits=2, scale_by="channel", **_BACK),
    "block": Policy(grad_bits=1, scale_by="block:128", **_BACK),
    "feedback": Policy(codec="ternary-feedback", **_BACK),
}


@pytest.fixture(params=POLICIES, name="policy")
def _policy(request):
    return POLICIES[request.param]


def gradients_of(step):
    rng = np.random.default_rng(step)
    return [
        [
            tf.constant(rng.normal(size=shape) * 10.0**-i, tf.float32)
            for i, shape in enumerate(SHAPES)
        ]
        for _ in range(NODES)
    ]


class Run:
    """Reduces steps on an exchange of one process with all nodes."""

    def __init__(self, policy, kernels, exchange=None):
        self.layout = make_layout(NAMES, SHAPES, policy)
        self.codecs = make_codecs(self.layout, kernels)
        exchange = exchange or LocalExchange(NODES, kernels)
        self.reduction = Reduction(self.codecs, exchange, tf.Variable(0, dtype=tf.int64), 3)

    def step(self, step, as_sums=False):
        keys = [
            DrawKey(tf.constant(3, tf.uint64), tf.constant(step), tf.constant(n))
            for n in range(NODES)
        ]
        found = self.reduction.reduce(gradients_of(step), keys, as_sums=as_sums)
        self.reduction.remember(found)
        return found

    def kept(self):
        """Returns what the owner keeps, by variable, flat."""
        named = {n: v.numpy() for n, v in self.reduction.memory.variables.items() if "sums" in n}
        by_place = lambda i: sorted(
            (int(name.split("/")[2]), values)
            for name, values in named.items()
            if name.split("/")[1] == str(i)
        )
        return [
            np.concatenate([np.zeros(0, np.float32), *(values for _, values in by_place(i))])
            for i in range(len(SHAPES))
        ]


def test_law_5_what_is_delivered_and_kept_is_the_exact_mean_and_what_was_kept(policy, kernels):
    coded, exact = (
        Run(policy, kernels),
        Run(dataclasses.replace(policy, sum_codec="exact"), kernels),
    )
    for step in range(STEPS):
        before, found = coded.kept(), coded.step(step)
        means = exact.step(step).means
        for kept, now, delivered, mean in zip(
            before, coded.kept(), found.means, means, strict=True
        ):
            wanted = kept + mean.numpy().reshape(-1)  # rounded once, as in law 9
            flat = delivered.numpy().reshape(-1)
            np.testing.assert_array_equal(now, wanted - flat)
            assert len(np.unique(np.abs(flat))) <= 2 + flat.size // SUM_BLOCK + 1


def test_law_5_each_block_of_a_variable_has_codes_of_three_levels(kernels):
    found = Run(POLICIES["ternary"], kernels).step(0)
    flat = found.means[0].numpy()  # the last of the bucket
    begin = sum(math.prod(shape) for shape in SHAPES[1:])
    ends = [0, -begin % SUM_BLOCK, 1500]
    for first, end in itertools.pairwise(ends):
        assert 1 < len(np.unique(np.abs(flat[first:end]))) <= 2


def test_the_means_of_many_steps_add_up_to_the_exact_ones(kernels):
    coded, exact = Run(POLICIES["ternary"], kernels), Run(Policy(grad_bits=1), kernels)
    total = lambda run: sum(run.step(step).means[4].numpy() for step in range(20))
    difference = total(coded) - total(exact)
    np.testing.assert_allclose(difference.reshape(-1), -coded.kept()[4], atol=1e-8)
    spread = np.std(exact.step(0).means[4])
    assert np.std(difference) < 2 * spread  # 20 means of independent errors would have more


@pytest.mark.parametrize("owners", [2, 3, 5, 8])
def test_law_4_neither_codes_nor_scales_depend_on_the_number_of_owners(owners, kernels):
    """Each owner codes its share; together that is what one owner of all codes."""
    policy = POLICIES["ternary"]
    whole = Run(policy, kernels)
    expected = [whole.step(step).sums or whole.kept() for step in range(2)]
    exact = Run(dataclasses.replace(policy, sum_codec="exact"), kernels)
    exchanges = [_OneOwner(owners, rank, kernels) for rank in range(owners)]
    makers = [sum_codecs(whole.codecs, exchange)[0] for exchange in exchanges]
    memories = [maker.init() for maker in makers]
    for step in range(2):
        (sums,) = exact.step(step, as_sums=True).sums
        found = []
        for rank, (maker, exchange) in enumerate(zip(makers, exchanges, strict=True)):
            first, end = exchange.share(sums.words.shape[0])
            codes, scales, memories[rank] = maker._code(
                sums.words[first:end], sums.units, sums.nodes, memories[rank]
            )
            found.append((codes, scales))
        kept = {}
        for maker, memory in zip(makers, memories, strict=True):
            kept |= dict(zip(maker.names, memory, strict=True))
        for i, values in enumerate(expected[step]):
            pieces = sorted(
                (int(name.split("/")[2]), each)
                for name, each in kept.items()
                if f"sums/{i}/" in name
            )
            joined = np.concatenate([np.zeros(0, np.float32), *(each for _, each in pieces)])
            np.testing.assert_array_equal(joined, values)
        assert sum(codes.shape[0] for codes, _ in found) == sums.words.shape[0]


@pytest.mark.parametrize("owners", [2, 3])
def test_law_4_scales_of_compiled_steps_do_not_depend_on_the_number_of_owners(owners, kernels):
    """So many blocks that the vectors of kernels begin at other blocks in each share."""
    size = 60 * SUM_BLOCK - 100
    layout = make_layout(["v/kernel"], [(size,)], POLICIES["ternary"])
    (codec,) = make_codecs(layout, kernels)
    codes = np.random.default_rng(1).integers(-NODES, NODES, size, endpoint=True)
    words = planes.pack_integers(tf.constant(codes, tf.float32), planes.plane_count(NODES))

    def scales_of(count, rank):
        exchange = _OneOwner(count, rank, kernels)
        (maker,) = sum_codecs([codec], exchange)
        first, end = exchange.share(words.shape[0])

        @tf.function(autograph=False)
        def code(words):
            given = words, tf.constant([0.1]), exchange.nodes(words), maker.init()
            return maker._code(*given)[1]

        return code(words[first:end]).numpy()

    found = np.concatenate([scales_of(owners, rank) for rank in range(owners)])
    np.testing.assert_array_equal(found, scales_of(1, 0))


class _OneOwner(LocalExchange):
    """Knows that it is one of several."""

    def __init__(self, owners, rank, kernels):
        super().__init__(NODES, kernels)
        self._owners, self._rank = owners, rank

    def share(self, rows):
        return share_of(rows, self._owners, self._rank)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_owns_nothing_makes_the_same_operations(rank, kernels):
    network = EchoTransport(rank, 2)
    exchange = network.exchange(1, kernels, tf.Variable(0, dtype=tf.int64))
    codecs = make_codecs(make_layout(["v/kernel"], [(1000,)], POLICIES["ternary"]), kernels)
    reduction = Reduction(codecs, exchange, tf.Variable(0, dtype=tf.int64), 3)
    assert bool(reduction.memory.variables) == (rank == 0)  # one block has one owner

    @tf.function(autograph=False)
    def reduce(gradient):
        found = reduction.reduce([[gradient]], reduction.keys(reduction.step.read_value()))
        reduction.remember(found)
        return found.means

    reduce(tf.random.stateless_normal([1000], [1, 2]))
    made = sorted(name.rsplit("/", 1)[1] for name in network.made)
    assert made == ["gathered", "max", "max", "scattered"]


@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 100, 1000])
@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_shares_are_whole_blocks_and_together_all(rows, processes):
    found = [share_of(rows, processes, rank) for rank in range(processes)]
    assert found[0][0] == 0 and found[-1][1] == rows
    assert all(a[1] == b[0] for a, b in itertools.pairwise(found))
    assert all(first % (SUM_BLOCK // GROUP) == 0 or first == rows for first, _ in found)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_reaches_all_and_leaves_no_memory(value, kernels):
    run = Run(POLICIES["ternary"], kernels)
    run.step(0)
    gradients = gradients_of(1)
    gradients[1][4] = tf.fill(SHAPES[4], value)
    keys = [
        DrawKey(tf.constant(3, tf.uint64), tf.constant(1), tf.constant(n)) for n in range(NODES)
    ]
    found = run.reduction.reduce(gradients, keys)
    run.reduction.remember(found)
    assert not np.isfinite(found.means[4]).any()
    assert all(np.isfinite(found.means[i]).all() for i in range(4))
    assert not run.kept()[4].any()
    assert run.kept()[0].any()


def test_means_as_sums_are_those_that_are_decoded(policy, kernels):
    (sums,) = Run(policy, kernels).step(0, as_sums=True).sums
    shapes = [SHAPES[i] for i in sums.variables]
    decoded = kernels.decode(sums.words, sums.units, sums.nodes, shapes, sums.parts)
    means = Run(policy, kernels).step(0).means
    for i, each in zip(sums.variables, decoded, strict=True):
        np.testing.assert_array_equal(each, means[i])


def test_law_7_the_payload_on_the_way_back_is_two_bits_and_a_scale_for_each_block(kernels):
    layout = make_layout(NAMES, SHAPES, POLICIES["ternary"])
    found = payloads(make_codecs(layout, kernels), LocalExchange(NODES, kernels))
    padded, scales = -(-layout.size // GROUP) * GROUP, 4 * len(NAMES)
    blocks = sum(
        len(set(range(o // SUM_BLOCK, (o + n - 1) // SUM_BLOCK + 1)) or {0}) for o, n in _places()
    )
    assert sum(p.sent for p in found) == pytest.approx(padded / 4 + scales + 4 * blocks)
    assert sum(p.received for p in found) == pytest.approx(padded / 4 + 4 * blocks)


def _places():
    """Yields the offset and size of each variable; the last one is first in the bucket."""
    offset = 0
    for shape in reversed(SHAPES):
        yield offset, math.prod(shape)
        offset += math.prod(shape)


def test_law_10_a_codec_whose_means_are_no_sums_is_refused(kernels):
    examples = ("UnpackedTernaryCodec", "OwnScaleTernaryCodec")
    for codec in (f"terngrad.codecs.examples:{name}" for name in examples):
        with pytest.raises(
            ValueError, match="sum_codec is ternary; allowed is exact with the codec"
        ):
            find_codec(codec, sum_codec="ternary")
    with pytest.raises(ValueError, match="sum_codec is 'half'; allowed are exact, ternary"):
        Policy(sum_codec="half")
