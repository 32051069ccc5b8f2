"""Laws of parameters that travel as changes: copy and shadow are equal, and follow them."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from terngrad import prefix_code
from terngrad.asynchronous.copies import (
    ChangeCode,
    Copy,
    Shadow,
    change_codes,
    changed,
    max_coded_bytes,
)
from terngrad.asynchronous.messages import exactly
from terngrad.asynchronous.plan import Plan
from terngrad.asynchronous.row import make_shards
from terngrad.gpu import ops
from terngrad.layout import Policy
from terngrad.ops.native import NativeKernels
from terngrad.ops.reference import ReferenceKernels
from terngrad.planes import GROUP, SUM_BLOCK, pack_integers
from terngrad.service.messages import Reply
from terngrad.testing.asynchronous import PLAN
from terngrad.training.runtime import choose_kernels

NATIVE, REFERENCE = choose_kernels().kernels, ReferenceKernels()
CODED = dataclasses.replace(PLAN, pull_codec="ternary", shapes=((700, 5), (3,)), statistics=2)
SIZES = (5, 2 * SUM_BLOCK + 7, SUM_BLOCK, 20)  # 97 groups of 32
MOVING = np.float32([3.0, -1.0]).tobytes()


def code_of(kernels=NATIVE, sizes=SIZES):
    return ChangeCode("ternary", sizes, kernels)


def shard_of(plan=CODED, count=1):
    return make_shards(plan.layout(), count, plan.nodes, plan.statistics)


class Pair:
    """A ps with the parameters of a shard, and a worker with its copy of them."""

    def __init__(self, of_ps=NATIVE, of_worker=NATIVE):
        (self.shard,) = shard_of()
        (self.code,) = change_codes(CODED, [self.shard], of_ps)
        (code,) = change_codes(CODED, [self.shard], of_worker)
        self.shadow, self.copy = Shadow(), Copy(self.shard, 32, code)

    def sent(self, parameters, copy=None):
        named = self.copy.number if copy is None else copy
        return self.shadow.next(self.code, parameters.tobytes() + MOVING, named)

    def take(self, sent):
        assert len(sent.content) in self.copy.sizes_of(is_coded=sent.is_coded)
        assert self.copy.sizes_of(is_coded=sent.is_coded) in self.copy.sizes
        reply = Reply(copy=sent.copy, coded=sent.is_coded)
        values, statistics = self.copy.take(reply, bytearray(sent.content))
        assert statistics.tobytes() == MOVING
        return values

    def pull(self, parameters):
        return self.take(self.sent(parameters))


def parameters_of(shard, seed=0, scale=1.0):
    return np.random.default_rng(seed).normal(scale=scale, size=shard.size).astype(np.float32)


@pytest.mark.parametrize(
    ("of_ps", "of_worker"), [(NATIVE, NATIVE), (NATIVE, REFERENCE), (REFERENCE, NATIVE)]
)
@pytest.mark.parametrize("scale", [1e-39, 1e-3, 1e6])
def test_a_workers_copy_is_the_shadow_bit_for_bit_after_each_pull(of_ps, of_worker, scale):
    pair = Pair(of_ps, of_worker)
    parameters = parameters_of(pair.shard, scale=scale)
    for i in range(8):
        values = pair.pull(parameters)
        assert values.tobytes() == pair.shadow.values.tobytes()
        assert (values.tobytes() == parameters.tobytes()) == (i == 0)
        parameters = parameters + parameters_of(pair.shard, i + 1, 0.01 * scale)


def test_a_copy_comes_to_parameters_that_stay_as_they_are():
    pair = Pair()
    pair.pull(np.zeros(pair.shard.size, np.float32))
    parameters = parameters_of(pair.shard)
    errors = []
    for _ in range(300):
        errors.append(np.linalg.norm(parameters - pair.pull(parameters)))
    assert errors[0] < np.linalg.norm(parameters) and errors[50] < 0.1 * errors[0]
    np.testing.assert_allclose(pair.shadow.values, parameters, atol=1e-5)


def test_the_error_of_a_copy_stays_within_a_multiple_of_what_changes_between_pulls():
    pair = Pair()
    parameters = parameters_of(pair.shard)
    pair.pull(parameters)
    for i in range(200):
        change = parameters_of(pair.shard, i + 1, 0.1)
        parameters = parameters + change
        error = np.linalg.norm(parameters - pair.pull(parameters))
        assert error < 2.0 * np.linalg.norm(change), i


@pytest.mark.parametrize("degrees", [1.0, 2.0, 5.0, 100.0])
def test_a_code_leaves_less_than_the_whole_change_however_heavy_its_tails(degrees):
    code = code_of()
    change = np.random.default_rng(3).standard_t(degrees, code.size).astype(np.float32)
    left = change - code.write(change).values
    start = 0
    for size in SIZES:
        for first in range(start, start + size, SUM_BLOCK):
            part = slice(first, min(first + SUM_BLOCK, start + size))
            assert np.sum(left[part] ** 2) < np.sum(change[part] ** 2)
        start += size


def test_a_pull_after_a_gap_has_the_parameters_themselves():
    pair = Pair()
    parameters = parameters_of(pair.shard)
    whole = parameters.tobytes() + MOVING
    pair.pull(parameters)
    held = pair.copy.number
    pair.sent(parameters)  # never arrives
    for gap in (held, 0, held + 17):
        sent = pair.sent(parameters, gap)
        assert (sent.content, sent.is_coded) == (whole, False)
    assert pair.take(sent).tobytes() == parameters.tobytes()
    assert pair.sent(parameters).is_coded
    restarted = Pair()  # the ps
    assert restarted.sent(parameters, pair.copy.number).content == whole
    pair.code = restarted.code  # another run
    assert pair.sent(parameters, pair.shadow.number).content == whole


def test_parameters_whose_change_no_float_can_scale_travel_themselves():
    pair = Pair()
    parameters = np.full(pair.shard.size, 3e38, np.float32)
    pair.pull(parameters)
    assert not pair.sent(-parameters).is_coded
    assert pair.shadow.values.tobytes() == (-parameters).tobytes()


def test_law_10_a_change_of_another_copy_is_named():
    pair = Pair()
    parameters = parameters_of(pair.shard)
    pair.pull(parameters)
    pair.sent(parameters)
    number = pair.shadow.number
    sent = pair.sent(parameters, number)
    with pytest.raises(
        ValueError, match=f"^sent copy {number + 1} as a change of copy {number - 1}$"
    ):
        pair.take(sent)
    with pytest.raises(ValueError, match=r"^sent copy 1 as a change of copy 0$"):
        Copy(pair.shard, 32, pair.code).take(Reply(copy=1, coded=True), bytearray(sent.content))
    with pytest.raises(ValueError, match="as a change of"):
        Copy(pair.shard, 32, None).take(Reply(copy=1, coded=True), bytearray(sent.content))


def test_denormal_sums_are_zero_whether_or_not_a_thread_flushes_them():
    values = np.float32([1e-40, -1e-40, 2.0**-120, 1.0])
    change = np.float32([0.0, 0.0, -(2.0**-120) * (1 - 2.0**-20), 1.0])
    np.testing.assert_array_equal(changed(values, change), np.float32([0, 0, 0, 2]))


def test_a_sum_of_values_of_many_blocks_is_that_of_all_at_once():
    values, change = np.random.default_rng(5).normal(size=(2, 150_001)).astype(np.float32)
    values[::7] = 1e-40
    change[::7] = 0.0
    expected = np.where(np.arange(len(values)) % 7, values + change, np.float32(0))
    assert changed(values, change).tobytes() == expected.tobytes()


@pytest.mark.parametrize("count", [1, 2, 3, 200])
@pytest.mark.parametrize("bits", [1, 32])
def test_law_7_the_most_bytes_of_a_change_are_those_of_its_variables(bits, count):
    names = ["a/kernel", "a/bias", "b/kernel"]
    plan = dataclasses.replace(
        CODED, names=tuple(names), shapes=((70, 50), (9,), (7, 11)), policy=Policy(grad_bits=bits)
    )
    shards = shard_of(plan, count)
    by_variable = max_coded_bytes(plan, shards)
    assert by_variable.keys() == set(range(len(names)))
    limit = 0
    for shard, code in zip(shards, change_codes(plan, shards, NATIVE), strict=True):
        assert sum(own.size for own in shard.ranges) == code.size == shard.size
        change = code.write(parameters_of(shard))
        assert len(change.content) in code.allowed_bytes
        assert code.read(change.content).shape == (shard.size,)
        limit += code.allowed_bytes[-1]
    assert limit == sum(by_variable.values())
    assert limit < plan.layout().size * (0.4 if count < 200 else 4)


def test_parameters_that_travel_as_floats_have_no_codes():
    (shard,) = shard_of(PLAN)
    assert change_codes(PLAN, [shard], NATIVE) == [None]
    copy = Copy(shard, 16, None)
    assert copy.sizes == [exactly(shard.size * 2)]
    content = parameters_of(shard).astype(np.float16).tobytes()
    values, _ = copy.take(Reply(), bytearray(content))
    assert values.tobytes() == content and copy.number == 0


def test_a_change_has_a_scale_for_each_block_of_a_variable():
    code = code_of()
    blocks = sum(-(-size // SUM_BLOCK) for size in SIZES)
    assert code.allowed_bytes[0] == 4 * blocks
    assert code.allowed_bytes[-1] == 4 * blocks + 8 * code.size // GROUP


def change_of(size, share, seed=0):
    """A change of a share of all values, of two magnitudes."""
    draws = np.random.default_rng(seed)
    values = draws.choice(np.float32([1.0, -1.0, 3.0, -3.0]), size)
    return np.where(draws.random(size) < share, values, np.float32(0))


@pytest.mark.usefixtures("native_library")
def test_changes_beside_gradients_on_gpus_have_the_native_kernels_of_the_cpu(monkeypatch):
    monkeypatch.setattr(ops, "prepare", lambda: ("sm_90",))
    code = code_of(ops.GpuKernels())
    assert type(code._kernels) is NativeKernels
    change = change_of(code.size, 0.5)
    assert code.write(change).content == code_of().write(change).content


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.5, 1.0])
def test_kernels_agree_on_a_changes_bytes_and_on_what_they_stand_for(share):
    codes = [code_of(), code_of(REFERENCE)]
    change = change_of(codes[0].size, share)
    (first, values), (second, other) = (code.write(change) for code in codes)
    assert first == second and values.tobytes() == other.tobytes()
    for code in codes:
        assert code.read(first).tobytes() == values.tobytes()
        assert code.read(memoryview(bytearray(first))).tobytes() == values.tobytes()


def test_law_7_a_change_takes_the_bytes_of_its_prefix_code_and_at_most_2_bits():
    code = code_of(sizes=(70_000, 25, 7))
    units, limit = code.allowed_bytes[0], code.allowed_bytes[-1]
    shares = 0.0, 0.01, 0.1, 0.3, 1.0
    bits = []
    for share in shares:
        content, values = code.write(change_of(code.size, share))
        words = pack_integers(tf.constant(np.sign(values)), 2).numpy()
        packed = prefix_code.pack(words, 1).tobytes()
        assert content[units:] == packed
        bits.append(8 * len(packed) / code.size)
    assert bits == sorted(bits) and bits[-1] <= 8 * (limit - units) / code.size == 2
    assert bits[0] < 0.01 and bits[1] < 0.15 and bits[2] < 0.7 and bits[3] < 1.4, bits


def test_a_copy_is_the_shadow_over_random_pulls_of_all_densities():
    pair, draws = Pair(), np.random.default_rng(7)
    parameters, kinds = parameters_of(pair.shard), set()
    for i in range(60):
        if draws.random() < 0.1:
            pair.sent(parameters)  # lost
        sent = pair.sent(parameters)
        kinds.add((sent.is_coded, len(sent.content) == pair.copy.sizes[1][-1]))
        assert pair.take(sent).tobytes() == pair.shadow.values.tobytes()
        change = change_of(pair.shard.size, draws.random() ** 4, i)
        parameters = parameters + np.float32(10.0 ** draws.uniform(-30, 3)) * change
    assert kinds >= {(False, False), (True, False)}


MALFORMED = {
    "too few bytes": lambda content: content[:-1],
    "too many bytes": lambda content: content + b"\0",
    "a header of no form": lambda content: content[:-16] + b"\7" + content[-15:],
    "no codes": lambda content: content[: code_of().allowed_bytes[0]],
}


@pytest.mark.parametrize("kernels", [NATIVE, REFERENCE])
@pytest.mark.parametrize("spoil", MALFORMED.values(), ids=MALFORMED)
def test_law_10_a_malformed_change_is_named(kernels, spoil):
    code = code_of(kernels)
    content = code.write(np.zeros(code.size, np.float32)).content
    code.read(content)
    with pytest.raises(ValueError, match=r"^sent a malformed change: "):
        code.read(spoil(content))


@pytest.mark.parametrize("kernels", [NATIVE, REFERENCE])
def test_law_10_planes_of_other_codes_and_units_that_are_not_finite_are_named(kernels):
    code = code_of(kernels)
    units, limit = code.allowed_bytes[0], code.allowed_bytes[-1]
    planes = np.zeros((code.size // GROUP, 2), "<u4")
    planes[5] = 0b0100, 0b0110  # the integers -2 and -1
    text = r"^sent a malformed change: integers are out of range; allowed are -1 to 1$"
    with pytest.raises(ValueError, match=text):
        code.read(bytes(units) + planes.tobytes())
    planes[5, 0] = 0b0110
    assert len(bytes(units) + planes.tobytes()) == limit
    code.read(bytes(units) + planes.tobytes())
    broken = np.full(units // 4, np.inf, "<f4").tobytes()
    with pytest.raises(ValueError, match=r"^sent a change with units that are not finite$"):
        code.read(broken + planes.tobytes())


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 255)), min_size=1, max_size=6))
@settings(max_examples=60)
def test_law_10_a_spoiled_change_is_read_or_refused_and_then_leaves_the_copy(spoiled):
    pair = Pair()
    parameters = parameters_of(pair.shard)
    before = pair.pull(parameters).tobytes()
    sent = pair.sent(parameters + change_of(pair.shard.size, 0.1))
    content = bytearray(sent.content)
    for place, value in spoiled:
        content[place % len(content)] ^= value
    number = pair.copy.number
    try:
        values, _ = pair.copy.take(Reply(copy=sent.copy, coded=True), content)
    except ValueError as error:
        assert str(error).startswith("sent a ") and pair.copy.number == number
        assert pair.copy.take(Reply(copy=sent.copy, coded=True), bytearray(sent.content))
        assert pair.shadow.values.tobytes() != before
    else:
        assert values.shape == (pair.shard.size,) and np.isfinite(values).all()


def test_plans_of_earlier_versions_pull_floats():
    text = PLAN.to_json().replace(', "pull_codec": "float"', "")
    assert "pull_codec" not in text and Plan.from_json(text) == PLAN
