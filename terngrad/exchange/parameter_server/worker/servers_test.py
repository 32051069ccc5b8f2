"""Which ps a worker waits for, and which ones it does without."""

import pytest

from terngrad.exchange.parameter_server.worker.servers import Servers


@pytest.fixture(name="told")
def _told():
    return []


@pytest.fixture(name="servers")
def _servers(told):
    """Three ps of an elastic training, all of which are reached."""
    servers = Servers(3, elastic=True, tell_lost=told.append)
    for ps in range(3):
        servers.opened(ps)
    return servers


def test_a_worker_waits_for_a_ps_until_it_is_lost(servers, told):
    assert servers.broke(1)
    assert not servers.wait_until_ready(0.01)
    assert not servers.reaches_used
    assert servers.lose(1)
    assert servers.wait_until_ready(0.01)
    assert told == [{1}]
    assert servers.used == (0, 1, 2)  # until there is a view without it


def test_a_view_without_a_ps_needs_no_stream_to_it(servers, told):
    servers.use_all_but([1])
    assert servers.used == (0, 2)
    assert not servers.broke(1)
    assert servers.is_ready
    assert servers.reaches_used
    assert told == [{1}]  # other workers must know that it cannot be used again yet


def test_a_ps_that_came_back_is_lost_no_more(servers, told):
    servers.broke(1)
    servers.lose(1)
    servers.tell()
    servers.opened(1)
    assert told == [{1}, {1}, set()]
    assert not servers.is_lost(1)


def test_where_the_ps_do_not_add_no_view_is_needed_because_of_one(told):
    servers = Servers(3, elastic=True, coordinator_moves=True, add=False, tell_lost=told.append)
    assert servers.is_ready  # a worker that joins waits for none that it has not reached yet
    for ps in range(3):
        servers.opened(ps)
    assert servers.broke(1)
    assert not servers.is_ready  # the next report tells who is lost
    assert servers.reaches_used
    assert servers.lose(1)
    assert servers.is_ready
    assert servers.is_lost(1)
    servers.opened(1)
    servers.tell()
    assert not told


def test_ps_0_is_never_lost_and_none_unless_elastic(servers):
    servers.broke(0)
    assert not servers.lose(0)
    assert not servers.is_ready
    assert not Servers(2, elastic=False, tell_lost=lambda lost: None).lose(1)
