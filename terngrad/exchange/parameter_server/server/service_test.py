"""The streams of a ps, without a network."""

import threading

import pytest

from terngrad.connect.introduction import COORDINATION, EXCHANGE
from terngrad.coordination import groups
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.server.service import Service, UnreadError
from terngrad.service.messages import Header, Report, join_frame
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.simulation.streams import Clock, Stream

SECS = 10.0


class First:
    """Arithmetic whose result is the first part."""

    def __init__(self):
        self.reduced = []

    def open(self, operation, piece, payload):
        del operation, piece
        return payload

    def reduce(self, operation, parts):
        del operation
        self.reduced.append(parts)
        return parts[0]

    def payload(self, operation, result):
        del operation
        return result


@pytest.fixture(name="clock")
def _clock():
    return Clock()


@pytest.fixture(name="service")
def _service(clock):
    """The service of ps 0; worker 0 trains alone."""
    service = Service(0, ["a:1"], First(), Rules(1, False, SECS), 1, [].append, clock=clock)
    assert service.open_coordination(0, Stream(0, COORDINATION))
    assert service.open_exchange(0, Stream(0, EXCHANGE))
    service.receive(0, Report(state_report={}).SerializeToString())
    return service


@pytest.mark.parametrize("purpose", ["coordination", "exchange"])
def test_a_worker_has_one_stream_of_each_purpose(service, purpose):
    accept = getattr(service, f"open_{purpose}")
    assert not accept(0, Stream(0, purpose))
    getattr(service, f"close_{purpose}")(
        0, **{"exchange": {"bye": None}}.get(purpose, {}), ending=""
    )
    assert accept(0, Stream(0, purpose))


def test_a_worker_that_is_lost_with_one_stream_open_is_reported_as_lost(clock):
    service = Service(0, ["a:1"], First(), Rules(1, False, SECS), 1, [].append, clock=clock)
    clock.now += SECS + 1
    service.coordinator.watch()
    assert service.outcome is None  # the first worker may start at any time
    assert service.open_exchange(0, Stream(0, EXCHANGE))
    service.close_exchange(0, None, "died")
    clock.now += SECS + 1
    service.coordinator.watch()
    assert service.outcome == "worker 0 (a:1) did not join within 10 s"


@pytest.mark.parametrize(("failed", "is_done"), [("", True), ("diverged", False)])
def test_a_worker_whose_meet_stream_broke_is_done_if_its_exchange_stream_says_so(
    service, clock, failed, is_done
):
    service.close_coordination(0, "died")
    service.close_exchange(0, Header(bye=True, failed=failed), "")
    clock.now += SECS + 1
    service.coordinator.watch()
    assert (service.outcome == "") == is_done


def test_pushes_of_views_that_are_not_those_of_ps_0_are_not_kept(service):
    own = service.coordinator.state.view.number
    operation = Operation("sum", Kind.FLOATS, 4, 1, 1)
    outbox, reduced = Stream(0, EXCHANGE), service.aggregator._arithmetic.reduced
    service.take(0, outbox, join_frame(Header(declared=operation.message(0))))
    for step, (view, steps) in enumerate([(own - 1, 0), (own, 1), (own + 1, 1)]):
        entry = Header(enters=True, view=view, contributors=groups.pack([0]))
        service.take(0, outbox, join_frame(entry))
        header = Header(step=step, view=view, contributors=groups.pack([0]))
        service.take(0, outbox, join_frame(header, bytes(16)))
        assert (len(reduced), service.aggregator.memory_bytes) == (steps, 0)


class Sums(First):
    """Arithmetic whose results have as many bytes as they may have."""

    def payload(self, operation, result):
        return memoryview(bytes(operation.result_size(0)))


def test_a_worker_may_leave_the_results_of_two_steps_unread_however_large_they_are():
    workers = range(16)
    operation = Operation("sum", Kind.CODES, 1 << 17, 1, len(workers))
    pushed, results = (
        sum(map(size, range(operation.pieces)))
        for size in (operation.push_size, operation.result_size)
    )
    share = pushed + pushed // 4
    assert results > 2 * share
    rules = Rules(len(workers), False, SECS)
    hosts = ["a:1"] * len(workers)
    service = Service(1, hosts, Sums(), rules, 2, max_bytes=share * len(workers))
    streams = [Stream(worker, EXCHANGE) for worker in workers]
    view = {"view": 1, "contributors": groups.pack(workers)}
    for worker, stream in enumerate(streams):
        assert service.open_exchange(worker, stream)
        service.take(worker, stream, join_frame(Header(declared=operation.message(0))))
    for worker, stream in enumerate(streams):
        service.take(worker, stream, join_frame(Header(enters=True, **view)))

    def make(step):
        for worker, stream in enumerate(streams):
            for piece in range(operation.pieces):
                part = bytes(operation.push_size(piece))
                header = Header(step=step, piece=piece, **view)
                service.take(worker, stream, join_frame(header, part))
        for stream in streams[:-1]:
            stream.down.waiting.clear()

    streams[-1].down.waiting.clear()
    make(step=0)  # the last worker to push gets all results while it pushes
    assert streams[-1].waiting_bytes > results
    streams[-1].down.waiting.popleft()
    make(step=1)
    with pytest.raises(UnreadError, match="the worker does not read its results"):
        make(step=2)


class _Unread:
    """An outbox that nobody reads."""

    waiting_bytes = 0

    def put(self, message):
        del message

    def __len__(self):
        return 0


def test_streams_that_end_while_orders_are_sent_block_nobody():
    """A coordinator sends while it holds its lock, and needs that of the streams."""
    rules = Rules(3, True, 60.0, 0.3, coordinator_moves=True)
    service = Service(0, ["a:1"] * 3, None, rules, 3, log=lambda line: None)
    service.open_coordination(1, _Unread())
    done = []

    def come_and_go():
        for _ in range(2000):
            service.open_coordination(2, _Unread())
            service.close_coordination(2, "died")
        done.append(2)

    def report():
        for i in range(2000):
            service.receive(1, Report(lost_ps=b"\4" * (i % 2)).SerializeToString())
        done.append(1)

    threads = [threading.Thread(target=act, daemon=True) for act in (come_and_go, report)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECS)
    assert sorted(done) == [1, 2]
