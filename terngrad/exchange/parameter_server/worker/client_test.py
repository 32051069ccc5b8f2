"""A worker's connection, without a network."""

import pytest

from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.service.messages import split_frame


class Link:
    """A link whose stream broke; it opens again when the client waits for it."""

    def __init__(self):
        self.is_up = False
        self.arrived = []
        self.unsent = 0

    def start(self):
        pass

    def send(self, message):
        pass

    def wait_until_up(self, secs):
        self.is_up = secs > 0
        return self.is_up

    def end(self, last_message=None):
        if self.is_up and last_message is not None:
            self.arrived.append(split_frame(last_message)[0])

    def join(self, timeout_secs):
        pass


class Network:
    """A network of such links."""

    def __init__(self):
        self.links = []

    def open(self, ps, method, events, *, waits=True):
        self.links.append(Link())
        return self.links[-1]

    def repeat(self, secs, call):
        return lambda: None

    def close(self):
        pass


@pytest.mark.parametrize(("why", "arrived"), [("", 1), ("diverged", 0)])
def test_a_worker_that_is_done_waits_for_broken_streams_to_send_its_goodbye(why, arrived):
    network = Network()
    client = Client(["ps0:1", "ps1:1"], ["a:1"], 0, 10.0, network=network)
    client.close(is_done=True, why=why)
    _, *exchange = network.links
    assert [len(link.arrived) for link in exchange] == [arrived, arrived]
    assert all(header.bye for link in exchange for header in link.arrived)
