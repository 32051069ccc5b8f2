"""When a worker sends its pushes."""

import re

import numpy as np
import pytest

from terngrad.coordination import groups
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.worker.contributors import _REMEMBERED_STEPS
from terngrad.exchange.parameter_server.worker.servers import Servers
from terngrad.exchange.parameter_server.worker.steps import Steps
from terngrad.ops.packing import ReferencePacking
from terngrad.service.messages import Header, View, join_frame, split_frame

BOTH = groups.pack([0, 1])


class Worker:
    """Worker 0 of two, with two ps: what it sends, by ps, and its results."""

    def __init__(self):
        self.sent, self.results = [[], []], []
        servers = Servers(2, elastic=False, report_lost=lambda lost: None)
        for ps in range(2):
            servers.opened(ps)
        send = lambda ps, frame: self.sent[ps].append(split_frame(frame)[0])
        self.steps = Steps(0, servers, send, lambda step: None, self.results.append)
        operation = Operation("sum", Kind.FLOATS, 1 << 20, 1, 2)  # pieces on both ps
        self.steps.declare(operation, lambda *result: self.results.append(result), lambda: None)

    def push(self, step):
        self.steps.push(0, step, np.zeros(1 << 20, np.float32))

    def meet(self, ps, view, *workers):
        frame = join_frame(Header(enters=True, view=view, contributors=groups.pack(workers)))
        self.steps.take(ps, frame)

    def pushed(self):
        """The steps that it has pushed, by ps."""
        return [
            {h.step for h in sent if h.view and not h.enters and not h.HasField("declared")}
            for sent in self.sent
        ]


@pytest.fixture(name="worker")
def _worker():
    worker = Worker()
    worker.steps.install(View(number=7, members=BOTH, needed=2))
    return worker


def test_a_worker_waits_for_others_where_results_or_a_view_are_missing_for_long(worker):
    assert not worker.steps.waits(-1.0)
    worker.push(3)
    assert worker.steps.waits(-1.0)
    assert not worker.steps.waits(1e6)
    worker.steps.interrupt()
    assert worker.steps.waits(-1.0)
    assert not worker.steps.waits(1e6)


def test_a_worker_enters_a_view_at_each_ps_and_pushes_when_all_contributors_have(worker):
    for sent in worker.sent:
        assert (sent[-1].enters, sent[-1].view, sent[-1].contributors) == (True, 7, BOTH)
    worker.push(3)
    worker.meet(0, 7, 0, 1)
    worker.meet(1, 7, 0)
    worker.meet(1, 6, 0, 1)
    assert worker.pushed() == [set(), set()]
    worker.meet(1, 7, 1)
    assert worker.pushed() == [{3}, {3}]


def test_a_worker_drops_its_push_of_an_abandoned_step(worker):
    worker.push(3)
    worker.steps.interrupt()
    assert len(worker.results) == 1  # zeros
    worker.steps.install(View(number=8, members=BOTH, needed=2))
    for ps in (0, 1):
        worker.meet(ps, 7, 0, 1)
        worker.meet(ps, 8, 0, 1)
    assert worker.pushed() == [set(), set()]


def test_a_worker_asks_for_the_result_of_others_at_once(worker):
    worker.steps.install(View(number=8, members=BOTH, needed=1))
    worker.steps.go(3, (1,))
    worker.push(3)
    assert worker.pushed() == [{3}, {3}]


def test_a_worker_needs_anothers_state_where_results_or_decisions_are_gone(worker):
    for number, pushed, last in ((8, 3, 3), (9, 0, _REMEMBERED_STEPS)):
        worker.steps.install(View(number=number, members=BOTH, needed=1))
        for step in range(last + 1):
            worker.steps.go(step, (1,))
        assert not worker.steps.interrupted
        worker.push(pushed)
        gone = Header(step=3, view=8, contributors=groups.pack([1]), gone=True)
        worker.steps.take(0, join_frame(gone))  # does not matter in the second view
        assert worker.steps.interrupted and not worker.steps.commit(pushed)


@pytest.mark.parametrize(
    ("workers", "contributors", "lacks_own"),
    [
        (2, (0, 1), True),
        (2, (0,), True),
        (2, (1,), False),  # it only asked: the result has all parts already
        (3, (0, 1, 2), False),  # the result is the sum over all
        (4, (0, 2), False),
    ],
)
def test_a_workers_own_part_is_missing_where_one_of_two_workers_contributed(
    workers, contributors, lacks_own
):
    delivered, servers = [], Servers(1, elastic=False, report_lost=lambda lost: None)
    servers.opened(0)
    steps = Steps(0, servers, lambda ps, frame: None, lambda step: None, pytest.fail)
    operation = Operation("sum", Kind.CODES, 1, 1, workers)
    deliver = lambda *result: delivered.append(result)
    steps.declare(operation, deliver, lambda: None, ReferencePacking())
    steps.install(View(number=7, members=groups.pack(range(workers)), needed=1))
    steps.go(3, contributors)
    steps.push(0, 3, np.uint32([5, 1]))
    header = Header(step=3, view=7, contributors=groups.pack(contributors))
    for _ in range(2):  # a duplicate delivers nothing
        steps.take(0, join_frame(header, bytes(operation.result_bytes)))
    ((_, makers, lacks, _),) = delivered
    assert (makers, lacks) == (len(contributors), lacks_own)
    steps.push(0, 4, np.uint32([5, 1]))
    steps.interrupt()
    assert not delivered[-1][2]  # an abandoned step has zeros


class Coder:
    """Worker 0 of some workers, with one ps: an operation on codes."""

    def __init__(self, workers=2, items=50, max_code=1):
        self.pushed, self.delivered, self.refused = [], [], []
        servers = Servers(1, elastic=False, report_lost=lambda lost: None)
        servers.opened(0)
        self.steps = Steps(0, servers, self._send, lambda step: None, self.refused.append)
        self.operation = Operation("sum", Kind.CODES, items, 1, workers, max_code)
        deliver = lambda *result: self.delivered.append(result)
        self.steps.declare(self.operation, deliver, lambda: None, ReferencePacking())
        self.all = groups.pack(range(workers))
        self.steps.install(View(number=7, members=self.all, needed=workers))
        self.steps.take(0, join_frame(Header(enters=True, view=7, contributors=self.all)))

    def _send(self, ps, frame):
        header, payload = split_frame(frame)
        if not (header.enters or header.HasField("declared")):
            self.pushed.append(payload)

    def take(self, payload, step=3, piece=0):
        header = Header(step=step, piece=piece, view=7, contributors=self.all)
        self.steps.take(0, join_frame(header, bytes(payload)))


@pytest.mark.parametrize("max_code", [1, 4, 31, 200])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_the_bytes_of_a_result_are_those_of_the_payloads_of_its_pieces(density, max_code):
    coder, rng = Coder(items=100_000, max_code=max_code), np.random.default_rng(0)
    planes = coder.operation.pushed_planes
    nonzero = np.packbits(rng.random(3_200_000) < density).view(np.uint32)
    words = np.stack([nonzero] + [0 * nonzero] * (planes - 1), axis=1)  # ones
    for step in (3, 4):
        coder.pushed.clear()
        coder.steps.push(0, step, words)
        assert len(coder.pushed) == coder.operation.pieces > 1
        for piece, payload in enumerate(coder.pushed):
            coder.take(payload, step, piece)  # of a worker that pushes the same
    assert len(coder.delivered) == 2
    for content, _, _, octets in coder.delivered:
        assert octets == (sum(payload.nbytes for payload in coder.pushed),) * 2
        np.testing.assert_array_equal(content.view(np.uint32), words.reshape(-1))
    assert octets[0] < words.nbytes
    coder.steps.push(0, 5, words)
    coder.steps.interrupt()
    assert coder.delivered[-1][3] == (0, 0)


def test_a_result_of_other_workers_than_the_contributors_is_refused():
    coder = Coder()
    coder.steps.push(0, 3, np.zeros([50, 2], np.uint32))
    header = Header(step=3, view=7, contributors=groups.pack([1]))
    coder.steps.take(0, join_frame(header, bytes(400)))
    assert coder.refused == ["sum: the result of step 3 has workers [1]; allowed are [0, 1]"]


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    "payload", [b"", bytes(16), b"\2" * 64, bytes(400 - 8), bytes(1000)], ids=len
)
def test_law_10_an_invalid_result_ends_the_training_and_names_its_senders(workers, payload):
    coder = Coder(workers)
    coder.steps.push(0, 3, np.zeros([50, 2], np.uint32))
    coder.take(payload)
    by = {2: r"\[1\]", 3: r"\[0, 1, 2\]"}[workers]
    where = f"sum: piece 0 of the result of step 3, from ps 0 and workers {by}, cannot be read: "
    (why,) = coder.refused
    assert re.match(where, why) and "\n" not in why
    assert not coder.delivered
