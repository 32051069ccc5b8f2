"""How a worker gets the state of the others."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from terngrad.codecs.factory import make_codecs
from terngrad.codecs.sum_codec import SumCodec
from terngrad.coordination import groups
from terngrad.coordination.client import InterruptionError
from terngrad.exchange.exchange import Owner, Payload
from terngrad.exchange.parameter_server.exchange import (
    ParameterServerConnection,
    ParameterServerExchange,
)
from terngrad.layout import Policy, make_layout
from terngrad.ops.reference import ReferenceKernels
from terngrad.planes import SUM_BLOCK, pack_integers, plane_count, unpack
from terngrad.service.messages import View
from terngrad.testing.coded_means import reduction_of
from terngrad.training.reduction import Reduction


class FakeCoordination:
    """Sends the worker a state in each view; interrupts the worker in its second view."""

    def __init__(self):
        self.said, self.confirmed = [], []

    def next_view(self, steps, *, is_live):
        self.said.append((steps, is_live))
        return View(number=len(self.said), donor=1, receivers=groups.pack([0]))

    def take_state(self):
        if len(self.said) == 2:
            raise InterruptionError
        return tf.constant([7 + len(self.said)], tf.int64).numpy().tobytes()

    def confirm_state(self, view):
        self.confirmed.append(view.number)


@pytest.fixture
def coordination():
    return FakeCoordination()


def test_a_worker_interrupted_before_it_got_a_state_does_not_report_that_it_has_it(coordination):
    client = SimpleNamespace(
        rank=0, size=2, coordination=coordination, wait_for_servers=lambda: None
    )
    connection = ParameterServerConnection(client)
    step = tf.Variable(5, dtype=tf.int64)
    connection.synchronize([step])
    connection.synchronize([step])
    assert coordination.said == [(5, False), (8, True), (8, False)]
    assert step.numpy() == 10
    assert coordination.confirmed == [1, 3]


def test_only_the_chief_sends_what_it_broadcasts_in_parts_of_64_kb():
    value, chiefs, others = np.arange(40_000, dtype=np.int32), {}, []

    def gather(name, content, round_):
        if len(content):
            chiefs[name, round_] = content
        others.append(len(content))
        return {0: chiefs[name, round_], 1: b""}

    found = []
    for rank, own in enumerate((value, np.zeros_like(value))):
        client = SimpleNamespace(rank=rank, size=2, coordination=SimpleNamespace(gather=gather))
        connection, others = ParameterServerConnection(client), []
        found += [connection.broadcast(tf.constant(own), "copy/40000").numpy() for _ in range(2)]
        found += [connection.broadcast(tf.constant([own[1]]), "copy/1").numpy()]
    assert [len(part) for part in chiefs.values()] == [
        1 << 16,
        1 << 16,
        160_000 - (1 << 17),
    ] * 2 + [4]
    assert others == [0] * 7
    for first, second in zip(found[:3], found[3:], strict=True):
        np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(found[0], value)


class Others:
    """A client of the other workers: they push their own codes, and it answers as a ps does."""

    def __init__(self, workers, integers):
        self.rank, self.size = 0, workers
        self._integers, self._operations = integers, []
        self.contributes, self.octets = True, (0, 0)
        self.steps = SimpleNamespace(push=self._push)

    def declare(self, operation, deliver, cancel, packing):
        del cancel, packing
        self._operations.append((operation, deliver))
        return len(self._operations) - 1

    def _push(self, index, step, content):
        """Answers a sum of codes."""
        del step
        operation, deliver = self._operations[index]
        assert content.nbytes == operation.items * operation.pushed_bytes
        lacks_own = operation.leaves_out_own and self.contributes
        has_own = self.contributes and not lacks_own
        total = self._integers[0 if has_own else 1 :].sum(axis=0)
        words = pack_integers(tf.constant(total, tf.float32), operation.result_planes)
        makers = self.size if self.contributes else self.size - 1
        deliver(words.numpy().view(np.uint8).reshape(-1), makers, lacks_own, self.octets)


@pytest.mark.parametrize("is_eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize(("workers", "local_nodes"), [(2, 1), (3, 1), (4, 1), (2, 3), (4, 2)])
def test_law_5_a_worker_adds_its_own_codes_once_and_only_where_they_are_missing(
    workers, local_nodes, is_eager, kernels
):
    rng = np.random.default_rng(workers)
    integers = rng.integers(-local_nodes, local_nodes + 1, (workers, 96))
    client, step = Others(workers, integers), tf.Variable(0, dtype=tf.int64)
    exchange = ParameterServerExchange(client, local_nodes, kernels, step)
    local = pack_integers(tf.constant(integers[0], tf.float32), plane_count(local_nodes))
    join = lambda: exchange._join_codes(local, "a", 1)
    run = join if is_eager else tf.function(join, autograph=False)
    for client.contributes in (True, False, True, False):
        total = run()
        assert total.shape == (3, plane_count(workers * local_nodes))
        expected = integers[0 if client.contributes else 1 :].sum(axis=0)
        np.testing.assert_array_equal(unpack(total), expected)
        made = workers if client.contributes else workers - 1
        assert exchange.nodes(total) == made * local_nodes


def test_law_8_memory_is_restored_to_the_owner_of_the_same_shares_only(tmp_path):
    kernels = ReferenceKernels()
    client, step = Others(3, np.zeros((3, 32))), tf.Variable(0, dtype=tf.int64)
    exchange = ParameterServerExchange(client, 1, kernels, step)
    exchange.begin_view(Owner(0, 2, 3))
    memory = reduction_of(exchange, kernels, step).memory
    (kept,) = (v for name, v in memory.variables.items() if name.startswith("kept_sums/1/"))
    kept.assign(tf.ones_like(kept))
    memory.save(str(tmp_path), 5, 0)
    exchange.begin_view(Owner(0, 2, 3))
    assert not kept.numpy().any()
    assert memory.restore(str(tmp_path), 5) == ""
    assert kept.numpy().all()
    had = "is of owner 1 of 2 (3 shares) of the means, this one is"
    others = {Owner(0, 3, 3): "owner 1 of 3 (3 shares)", Owner(0, 2, 2): "owner 1 of 2 (2 shares)"}
    for owner, has in others.items():
        exchange.begin_view(owner)
        assert memory.restore(str(tmp_path), 5).endswith(f"{had} {has}")
        assert not kept.numpy().any()


def test_law_8_memory_is_not_restored_to_the_owner_of_shares_of_other_buckets(tmp_path):
    kernels, step = ReferenceKernels(), tf.Variable(0, dtype=tf.int64)
    exchange = ParameterServerExchange(Others(2, np.zeros((2, 32))), 1, kernels, step)
    exchange.begin_view(Owner(0, 2, 2))
    shapes = [(2, SUM_BLOCK), (4, SUM_BLOCK)]
    memories = []
    for bucket_elements in (1 << 20, 1):  # one bucket, and two
        policy = Policy(grad_bits=1, sum_codec="ternary", size_to_binarize=0)
        codecs = make_codecs(make_layout(["a", "b"], shapes, policy, bucket_elements), kernels)
        memories.append(Reduction(codecs, exchange, step, 3).memory)
    memories[0].save(str(tmp_path), 5, 0)
    assert memories[0].restore(str(tmp_path), 5) == ""
    assert memories[1].restore(str(tmp_path), 5).endswith("is of means in other buckets")


@pytest.mark.parametrize(("blocks", "own"), [(4, 0.25), (0.1, 1.0)])
def test_law_7_owners_that_change_send_as_many_bytes_as_others_where_all_are_there(
    kernels, blocks, own
):
    step, found = tf.Variable(0, dtype=tf.int64), []
    layout = make_layout(
        ["w"],
        [(int(blocks * SUM_BLOCK),)],
        Policy(grad_bits=1, sum_codec="ternary", size_to_binarize=0),
    )
    (codec,) = make_codecs(layout, kernels)
    for owner in (None, Owner(0, 4, 4)):
        exchange = ParameterServerExchange(Others(4, np.zeros((4, 32))), 2, kernels, step)
        if owner:
            exchange.begin_view(owner)
        (coded,) = SumCodec(codec, exchange).payload().values()
        assert coded.own == own
        found.append(exchange.traffic_of_coded_sums(Payload(200.0, 400.0), coded))
    sent = 200.0 + coded.codes * own + coded.scales
    assert found == [Payload(sent, 400.0 * own + coded.codes + coded.scales)] * 2


@pytest.mark.parametrize("is_eager", [True, False], ids=["eager", "graph"])
def test_law_7_a_worker_counts_the_bytes_sent_and_received_for_its_results(is_eager, kernels):
    client, step = Others(4, np.zeros((4, 320), int)), tf.Variable(0, dtype=tf.int64)
    exchange = ParameterServerExchange(client, 1, kernels, step)
    local = tf.zeros([10, plane_count(1)], tf.uint32)
    join = lambda: [exchange._join_codes(local, name, 1) for name in "ab"]
    run = join if is_eager else tf.function(join, autograph=False)
    for client.octets in ((24, 40), (0, 0), (1 << 40, 8)):
        before = np.array([exchange.bytes_sent, exchange.bytes_received])
        run()
        after = np.array([exchange.bytes_sent, exchange.bytes_received])
        np.testing.assert_array_equal(after - before, 2 * np.array(client.octets))
