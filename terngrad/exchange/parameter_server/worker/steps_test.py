"""When a worker sends its pushes."""

import numpy as np
import pytest

from terngrad.exchange.parameter_server import groups
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.worker.servers import Servers
from terngrad.exchange.parameter_server.worker.steps import Steps
from terngrad.ops.reference import ReferenceKernels
from terngrad.service.messages import Header, View, join_frame, split_frame

BOTH = groups.pack([0, 1])


class Worker:
    """Worker 0 of two, with two ps: what it sends, by ps, and its results."""

    def __init__(self):
        self.sent, self.results = [[], []], []
        servers = Servers(2, elastic=False, tell_lost=lambda lost: None)
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


def test_it_enters_a_view_at_each_ps_and_pushes_when_all_contributors_are_in_it(worker):
    for sent in worker.sent:
        assert (sent[-1].enters, sent[-1].view, sent[-1].contributors) == (True, 7, BOTH)
    worker.push(3)
    worker.meet(0, 7, 0, 1)
    worker.meet(1, 7, 0)
    worker.meet(1, 6, 0, 1)
    assert worker.pushed() == [set(), set()]
    worker.meet(1, 7, 1)
    assert worker.pushed() == [{3}, {3}]


def test_it_drops_a_push_of_an_abandoned_step(worker):
    worker.push(3)
    worker.steps.interrupt()
    assert len(worker.results) == 1  # zeros
    worker.steps.install(View(number=8, members=BOTH, needed=2))
    for ps in (0, 1):
        worker.meet(ps, 7, 0, 1)
        worker.meet(ps, 8, 0, 1)
    assert worker.pushed() == [set(), set()]


def test_it_asks_for_the_result_of_others_at_once(worker):
    worker.steps.install(View(number=8, members=BOTH, needed=1))
    worker.steps.go(3, (1,))
    worker.push(3)
    assert worker.pushed() == [{3}, {3}]


@pytest.mark.parametrize(
    ("workers", "contributors", "lacks_own"),
    [
        (2, (0, 1), True),
        (4, (0, 1, 2, 3), True),
        (4, (0, 2), True),
        (4, (1, 2, 3), False),  # it only asked: the result has all parts already
        (3, (0, 1, 2), False),  # the result is the sum over all
        (3, (1, 2), False),
    ],
)
def test_its_part_is_missing_where_it_contributed_and_the_others_sum_takes_fewer_planes(
    workers, contributors, lacks_own
):
    delivered, servers = [], Servers(1, elastic=False, tell_lost=lambda lost: None)
    servers.opened(0)
    steps = Steps(0, servers, lambda ps, frame: None, lambda step: None, pytest.fail)
    operation = Operation("sum", Kind.CODES, 1, 1, workers)
    deliver = lambda *result: delivered.append(result)
    steps.declare(operation, deliver, lambda: None, ReferenceKernels())
    steps.install(View(number=7, members=groups.pack(range(workers)), needed=1))
    steps.go(3, contributors)
    steps.push(0, 3, np.uint32([5, 1]))
    header = Header(step=3, view=7, contributors=groups.pack(contributors))
    for _ in range(2):  # a duplicate delivers nothing
        steps.take(0, join_frame(header, bytes(operation.result_bytes)))
    ((_, makers, lacks),) = delivered
    assert (makers, lacks) == (len(contributors), lacks_own)
    steps.push(0, 4, np.uint32([5, 1]))
    steps.interrupt()
    assert not delivered[-1][2]  # an abandoned step has zeros
