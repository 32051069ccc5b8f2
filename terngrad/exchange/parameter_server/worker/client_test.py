"""A worker's connection, without a network."""

import pytest

from terngrad.connect.config import ConnectConfig
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.service.messages import Order, Report, View, split_frame


class Link:
    """A link whose stream broke; it opens again when the client waits for it."""

    def __init__(self):
        self.is_up = False
        self.arrived, self.sent = [], []
        self.unsent = 0
        self.joined = False

    def start(self):
        pass

    def send(self, message):
        self.sent.append(message)

    def wait_until_up(self, secs):
        self.is_up = secs > 0
        return self.is_up

    def end(self, last_message=None):
        if self.is_up and last_message is not None:
            self.arrived.append(split_frame(last_message)[0])

    def join(self, timeout_secs):
        self.joined = True


class FakeNetwork:
    """A network of such links."""

    def __init__(self):
        self.links, self.events = [], []

    def open(self, ps, purpose, events, *, waits=True):
        self.events.append(events)
        self.links.append(Link())
        return self.links[-1]

    def repeat(self, secs, call):
        return lambda: None

    def close(self):
        pass


CONFIG = ConnectConfig(["a:1"], 0, ["ps0:1", "ps1:1"], 10.0)


@pytest.mark.parametrize(("why", "arrived"), [("", 1), ("diverged", 0)])
def test_a_worker_that_is_done_waits_for_broken_streams_to_send_its_goodbye(why, arrived):
    network = FakeNetwork()
    client = Client(CONFIG, network=network)
    client.close(is_done=True, why=why)
    _, *exchange = network.links
    assert [len(link.arrived) for link in exchange] == [arrived, arrived]
    assert all(header.bye for link in exchange for header in link.arrived)


def elastic_client(network):
    """Returns a client that has lost ps 1, and the events of that ps."""
    client = Client(CONFIG, network=network, elastic=True)
    *_, events = network.events
    assert events.on_loss("ps 1 did not come back")
    return client, events


def test_a_lost_ps_may_refuse_a_worker_and_a_used_one_ends_it():
    client, events = elastic_client(FakeNetwork())
    assert events.on_refusal("ps 1 was started with other flags")  # goes on trying
    assert not client.failure
    events.on_open()
    assert not events.on_refusal("ps 1 refused this worker")
    assert client.failure == "ps 1 refused this worker"


@pytest.mark.parametrize(
    ("event", "failed"), [("on_refusal", []), ("on_message_refusal", ["ps 1 refused a push"])]
)
def test_a_refused_worker_ends_alone_and_a_refused_message_ends_all(event, failed):
    network = FakeNetwork()
    client = Client(CONFIG, network=network)
    assert not getattr(network.events[-1], event)("ps 1 refused a push")
    assert client.failure == "ps 1 refused a push"
    reports = [Report.FromString(message) for message in network.links[0].sent]
    assert [report.failed for report in reports if report.failed] == failed


def test_a_worker_that_is_done_does_not_wait_for_a_lost_ps():
    network = FakeNetwork()
    client, _ = elastic_client(network)
    client.close(is_done=True)
    _, first, lost = network.links
    assert (first.joined, lost.joined) == (True, False)


def test_the_worker_of_the_view_saves_unless_another_is_chosen_at_the_end():
    client = Client(CONFIG, network=FakeNetwork())
    assert client.saver is None
    client.coordination.handle(
        Order(view=View(number=1, members=b"\7", saver=2)).SerializeToString()
    )
    assert client.saver == 2
    client.coordination.handle(Order(end="lost", saver=1).SerializeToString())
    assert client.saver == 1
