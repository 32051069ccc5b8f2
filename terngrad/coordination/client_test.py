"""Workers and their coordinator need nothing but a way for messages, whatever carries them."""

import pytest

from terngrad.cluster.errors import MembershipError
from terngrad.cluster.progress import ProcessProgress
from terngrad.connect.channel import FrameError
from terngrad.coordination.client import CoordinatorClient, Events, InterruptionError
from terngrad.coordination.coordinator import Coordinator
from terngrad.coordination.states import Rules
from terngrad.service.messages import Order, Report, Values
from terngrad.testing.coordination import members


class Link:
    """Hands a worker's messages to the coordinator, unless it is broken."""

    def __init__(self, worker, coordinator):
        self.worker, self.coordinator, self.is_up, self.unsent = worker, coordinator, True, 0

    def start(self):
        self.coordinator.connect(self.worker)

    def send(self, message):
        if self.is_up:
            self.coordinator.handle(self.worker, Report.FromString(message))


@pytest.fixture(name="joined")
def _joined():
    """Returns two workers, their links, and the events that they note."""
    events = []
    note = lambda name: lambda *what: events.append(name)
    names = ("on_view", "on_report_request", "on_go", "on_lost_ps", "on_open", "on_end")
    clients = [CoordinatorClient(Events(**{n: note(n) for n in names})) for _ in range(2)]
    send = lambda worker, order: clients[worker].handle(order.SerializeToString())
    coordinator = Coordinator(["a:1", "b:2"], Rules(2, False, 10.0), send, log=lambda line: None)
    links = [Link(worker, coordinator) for worker in range(2)]
    for client, link in zip(clients, links, strict=True):
        client.use(link, ProcessProgress())
    return clients, links, events


def test_workers_share_values_and_a_view_and_report_anew_when_one_joins_again(joined):
    clients, _, events = joined
    asked = [client.ask_values("sizes", bytes([i])) for i, client in enumerate(clients)]
    assert [find() for find in asked] == [{0: b"\0", 1: b"\1"}] * 2
    asked = [client.ask_view(0, is_live=False) for client in clients]
    first, other = (find() for find in asked)
    assert first == other and members(first) == (0, 1)
    assert events == ["on_view"] * 2
    clients[0].check()
    again = clients[1].ask_view(3, is_live=True)
    assert again() is None
    with pytest.raises(InterruptionError):  # worker 0 must report its state, too
        clients[0].check()
    assert clients[0].next_view(3, is_live=True) == again()
    assert again().number > first.number


def test_bytes_that_are_no_order_are_refused(joined):
    (client, _), _, events = joined
    with pytest.raises(FrameError, match="it is not a valid Order"):
        client.handle(b"\xff")
    unequal = Order(values=Values(name="sizes", workers=[0, 1], contents=[b"a"]))
    with pytest.raises(FrameError, match="it has not one value of each worker that it names"):
        client.handle(unequal.SerializeToString())
    assert not events


def test_a_restarted_worker_gets_an_error_if_the_others_are_calls_ahead(joined):
    (live, again), _, _ = joined
    for call in range(4):
        asked = [client.ask_values("sizes", b"a", call) for client in (live, again)]
        assert all(find() == {0: b"a", 1: b"a"} for find in asked)
    assert again.ask_values("sizes", b"a", 2)() == {0: b"a", 1: b"a"}
    with pytest.raises(MembershipError, match="started again, and their program does not let it"):
        again.ask_values("sizes", b"a", 1)()
    assert live.ask_values("of a view", b"a")() is None


def test_a_report_that_was_lost_with_its_stream_is_repeated_on_the_next(joined):
    clients, links, events = joined
    clients[0].ask_view(0, is_live=False)
    links[1].is_up = False
    asked = clients[1].ask_view(0, is_live=False)
    links[1].is_up = True
    clients[1].opened()
    assert members(asked()) == (0, 1)
    assert events == ["on_open", "on_view", "on_view"]


def test_a_worker_that_fails_ends_the_waits_of_the_others(joined):
    clients, _, events = joined
    asked = clients[0].ask_view(0, is_live=False)
    clients[1].fail("a bad record")
    assert asked() is None
    with pytest.raises(MembershipError, match=r"worker 1 \(b:2\) failed: a bad record"):
        clients[0].check()
    assert events == ["on_end", "on_end"]


def test_a_loop_over_many_names_goes_on_with_a_new_coordinator(joined):
    clients, links, _ = joined
    for i in range(200):
        asked = [client.ask_values(f"a new Reducer {i}", b"") for client in clients]
        assert [find() for find in asked] == [{0: b"", 1: b""}] * 2
    send = lambda worker, order: clients[worker].handle(order.SerializeToString())
    coordinator = Coordinator(["a:1", "b:2"], Rules(2, False, 10.0), send, log=lambda line: None)
    for client, link in zip(clients, links, strict=True):
        link.coordinator = coordinator
        link.start()
        client.opened()
    asked = [client.ask_values("the next one", b"") for client in clients]
    assert [find() for find in asked] == [{0: b"", 1: b""}] * 2


def test_a_worker_that_joins_after_names_were_dropped_gets_an_error(joined):
    clients, links, _ = joined
    for i in range(200):
        for client in clients:
            client.ask_values(f"a new Reducer {i}", b"")
    clients[1] = CoordinatorClient(clients[1]._events)
    clients[1].use(links[1], ProcessProgress())
    with pytest.raises(MembershipError, match=r"later calls than this one \(a new Reducer 0\)"):
        clients[1].ask_values("a new Reducer 0", b"")()
