"""A worker's network to the ps notes which of their ports are closed."""

from unittest import mock

from terngrad.service import grpc_network
from terngrad.service.grpc_network import GrpcNetwork


class _Raced(set):
    """A set from which another thread takes each element right after this one has seen it."""

    def __contains__(self, element):
        found = super().__contains__(element)
        self.discard(element)
        return found


def test_two_streams_may_find_at_once_that_a_port_is_open_again(monkeypatch):
    monkeypatch.setattr(grpc_network, "dial", mock.Mock())
    network = GrpcNetwork(["one:1"], ["two:2"], 0, 1.0)
    network._closed_ports = _Raced([(0, 7)])
    assert network._move(0, mock.Mock(), 7, b"token")
    assert not network._closed_ports
    network.close()
