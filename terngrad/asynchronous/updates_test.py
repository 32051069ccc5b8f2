"""Updates of a ps' parameters: whole, or not at all."""

import dataclasses

import numpy as np
import pytest

from terngrad.asynchronous.gradient import Pushable, parts_by_ps
from terngrad.asynchronous.plan import read_proposal
from terngrad.asynchronous.row import make_row_layout, make_shards
from terngrad.asynchronous.updates import GradientError, Updates
from terngrad.ops.native import NativeKernels
from terngrad.ops.packing import ReferencePacking
from terngrad.ops.reference import ReferenceKernels
from terngrad.planes import pack_integers, plane_count
from terngrad.testing.asynchronous import PLAN, gradient
from terngrad.testing.memory import peak_bytes
from terngrad.training import schedules
from terngrad.training.slots import SLOTS

LARGEST = 1e10  # most that a gradient may have
ENDLESS = 60  # updates that are more than enough for each optimizer to overflow


def updates(rate=0.1, **changes):
    schedule = schedules.fixed(rate)
    text = dataclasses.replace(PLAN, **changes).to_json().encode()
    plan, shard, size = read_proposal(text, 0, 1, lambda text: schedule)
    made = Updates(plan, shard, ReferenceKernels(), schedule)
    made.load(bytes(size), 0)
    return made


def is_finite(state):
    return np.isfinite(np.frombuffer(state, "<f4")).all()


@pytest.mark.parametrize("averages_decay", [0.0, 0.9])
@pytest.mark.parametrize("optimizer", SLOTS)
def test_law_10_an_update_that_overflows_is_undone(optimizer, averages_decay):
    own = updates(3e37, optimizer=optimizer, momentum=0.9, averages_decay=averages_decay)
    change = own.check(gradient(LARGEST, word=0xFFFFFFFF))
    for _ in range(ENDLESS):
        state, version = own.state(), own.version
        try:
            own.apply(change)
        except GradientError as error:
            assert "would not be finite" in str(error)
            break
        assert is_finite(own.state())
    else:
        pytest.fail("nothing overflowed")
    assert (own.state(), own.version) == (state, version)
    own.apply(own.check(gradient(0.0)))
    assert own.version == version + 1 and is_finite(own.state())


@pytest.mark.parametrize("optimizer", SLOTS)
def test_no_gradients_that_are_allowed_make_the_state_overflow_unseen(optimizer):
    own = updates(1.0, optimizer=optimizer, momentum=0.9)
    change = own.check(gradient(LARGEST, word=0xFFFFFFFF))
    for _ in range(ENDLESS):
        own.apply(change)
        assert is_finite(own.state())


def test_parameters_beyond_half_precision_are_pulled_as_its_largest_value():
    own = updates(1.0, optimizer="gd", pull_bits=16)
    own.apply(own.check(gradient(1e6, word=0xFFFFFFFF)))
    pulled = np.frombuffer(own.pulled(), "<f2")
    assert np.isfinite(pulled).all() and np.abs(pulled).max() == np.finfo(np.float16).max


@pytest.mark.parametrize("nonzero", [0.0, 0.02, 0.5])
@pytest.mark.parametrize(("ps_count", "nodes"), [(1, 1), (3, 1), (2, 4)])
def test_law_3_a_ps_reads_the_codes_that_a_worker_has_pushed(ps_count, nodes, nonzero):
    plan = dataclasses.replace(PLAN, nodes=nodes, shapes=((400, 30), (30,)))
    layout = plan.layout()
    rng = np.random.default_rng(nodes)
    row_layout, planes = make_row_layout(layout), plane_count(nodes)
    sums = rng.integers(-nodes, nodes + 1, row_layout.coded) * (
        rng.random(row_layout.coded) < nonzero
    )
    words = pack_integers(np.float32(sums), planes).numpy()
    pushed = Pushable(
        scales=np.ones(2, np.float32),
        units=np.ones(2, np.float32),
        words=words,
        floats=np.zeros(row_layout.size - row_layout.coded, np.float32),
        statistics=np.zeros(0, np.float32),
    )
    shards = make_shards(layout, ps_count, nodes, 0)
    parts = parts_by_ps(pushed, shards, NativeKernels().packing)
    assert parts == parts_by_ps(pushed, shards, ReferencePacking())
    found = []
    for ps, (shard, part) in enumerate(zip(shards, parts, strict=True)):
        _, own, _ = read_proposal(plan.to_json().encode(), ps, ps_count, schedules.fixed)
        made = Updates(plan, own, ReferenceKernels(), schedules.fixed(0.1))
        found.append(made.check(part).words)
        assert len(part) in shard.pushed_bytes
        if nonzero < 0.5:
            assert len(part) < shard.pushed_bytes[-1] / 2
    np.testing.assert_array_equal(np.concatenate(found), words)


def test_law_10_codes_beyond_the_largest_are_named_by_the_worker_that_wrote_them():
    layout = PLAN.layout()
    words = np.zeros((4, 2), "<u4")
    words[1] = 0, 1  # the integer -2
    nothing = np.zeros(0, np.float32)
    pushed = Pushable(np.ones(2), np.ones(2, np.float32), words, nothing, nothing)
    with pytest.raises(ValueError, match=r"^sums of codes are out of range; allowed are -1 to 1$"):
        parts_by_ps(pushed, make_shards(layout, 1, 1, 0), ReferencePacking())


@pytest.mark.slow
def test_updates_keep_no_memory():
    own, count = updates(1e-3), 4000
    change = own.check(gradient(1.0))

    def apply():
        for _ in range(count):
            own.apply(change)

    apply()  # what is made once is made now
    assert peak_bytes(apply) < 300 * count
