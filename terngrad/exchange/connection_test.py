"""The measured network is that of a stand-in whose clock is known."""

import pytest
import tensorflow as tf

from terngrad.exchange import connection
from terngrad.exchange.connection import Connection, measure_network


class Known(Connection):
    """Three processes whose messages take as long as a formula says."""

    rank, size = 0, 3

    def __init__(self, latency, bits_per_sec, largest_part=1 << 26):
        self.latency, self.bits_per_sec, self.largest_part = latency, bits_per_sec, largest_part
        self.now, self.sizes, self.names = 0.0, [], []

    def all_gather(self, part, name):
        assert name not in self.names
        octets = part.shape.num_elements() * part.dtype.size
        assert octets <= self.largest_part
        self.names.append(name)
        self.sizes.append(octets)
        self.now += self.latency + 8 * octets * (self.size - 1) / self.bits_per_sec
        return tf.stack([part] * self.size)

    def broadcast(self, value, name):
        raise NotImplementedError

    def exchange(self, local_nodes, kernels, step):
        raise NotImplementedError

    def synchronize(self, state):
        raise NotImplementedError


@pytest.fixture
def known(monkeypatch):
    def make(*arguments):
        made = Known(*arguments)
        monkeypatch.setattr(connection.time, "perf_counter", lambda: made.now)
        return made

    return make


@pytest.mark.parametrize("bits_per_sec", [1e7, 1e8, 1e9, 1e10])
def test_latency_and_bandwidth_are_found_within_some_seconds(known, bits_per_sec):
    network = known(2e-4, bits_per_sec)
    found = measure_network(network)
    assert found.latency_secs == pytest.approx(2e-4, rel=0.05)
    assert found.bits_per_sec == pytest.approx(bits_per_sec, rel=0.05)
    assert network.now < 3


def test_where_messages_must_be_short_they_are(known):
    network = known(2e-4, 1e9, 1 << 16)
    assert measure_network(network).bits_per_sec == pytest.approx(1e9, rel=0.05)
    assert max(network.sizes) == 1 << 16


def test_a_network_that_shows_no_difference_has_a_finite_bandwidth(known):
    found = measure_network(known(1e-3, 1e30, 1 << 16))
    assert 1e9 < found.bits_per_sec < 1e12


def test_a_process_alone_has_no_network(known):
    alone = known(2e-4, 1e9)
    alone.size = 1
    assert measure_network(alone) is None
    assert not alone.sizes
