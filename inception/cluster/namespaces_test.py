"""A network of hosts on this machine; benchmarks/host_network_test.py has one where it can."""

import pytest

from inception.cluster.namespaces import NamespaceNetwork


@pytest.mark.parametrize("why", [ValueError("no bridge"), KeyboardInterrupt()])
def test_a_network_that_cannot_be_made_leaves_no_hosts(monkeypatch, why):
    done = []

    def configure(network, *arguments):
        done.append(arguments)
        raise why if arguments[0] == "up" else ValueError("down fails, too")

    monkeypatch.setattr(NamespaceNetwork, "_configure", configure)
    with pytest.raises(type(why)) as raised, NamespaceNetwork("test", 2):
        pass
    assert raised.value is why
    assert done == [("up", "2"), ("down",)]
