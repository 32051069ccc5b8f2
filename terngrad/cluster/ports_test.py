import socket

import pytest

from terngrad.cluster import ports
from terngrad.cluster.ports import free_ports


@pytest.mark.parametrize("outgoing", ["32768\t60999\n", "10000 60000", "1024 65535", "none", None])
def test_ports_are_free_and_no_outgoing_connections(monkeypatch, tmp_path, outgoing):
    file = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(ports, "_OUTGOING", file)
    if outgoing:
        file.write_text(outgoing)
    found = free_ports(20)
    assert len({*found}) == 20
    for port in found:
        socket.create_server(("", port)).close()
    first, last = map(int, outgoing.split()) if outgoing and outgoing != "none" else (49152, 65535)
    if (first, last) == (1024, 65535):
        first, last = 0, 9999  # all are outgoing: any port above those of services will do
    assert not any(first <= port <= last for port in found)


def test_an_address_of_another_machine_has_no_free_port():
    with pytest.raises(OSError, match="1 free ports are needed; only 0 were found"):
        free_ports(1, "192.0.2.1")


def test_ports_at_which_somebody_listens_are_not_found(monkeypatch):
    two = free_ports(2)
    monkeypatch.setattr(ports, "_lasting", lambda: [*two])
    with socket.create_server(("127.0.0.1", two[0])):
        assert free_ports(1) == two[1:]
        with pytest.raises(OSError, match="2 free ports are needed; only 1 were found"):
            free_ports(2)
