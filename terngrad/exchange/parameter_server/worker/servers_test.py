"""Which ps a worker waits for, and which ones it does without."""

import pytest

from terngrad.exchange.parameter_server.worker.servers import Servers


@pytest.fixture(name="reported")
def _reported():
    return []


@pytest.fixture(name="servers")
def _servers(reported):
    """Three ps of an elastic training, all of which are reached."""
    servers = Servers(3, elastic=True, report_lost=reported.append)
    for ps in range(3):
        servers.opened(ps)
    return servers


def test_a_worker_waits_for_a_ps_until_it_is_lost(servers, reported):
    assert servers.broke(1)
    assert not servers.wait_until_ready(0.01)
    assert not servers.reaches_used
    assert servers.lose(1)
    assert servers.wait_until_ready(0.01)
    assert reported == [{1}]
    assert servers.used == (0, 1, 2)  # until there is a view without it


def test_a_view_without_a_ps_needs_no_stream_to_it(servers, reported):
    servers.use_all_but([1])
    assert servers.used == (0, 2)
    assert not servers.broke(1)
    assert servers.wait_until_ready(0)
    assert servers.reaches_used
    assert reported == [{1}]  # other workers must know that it cannot be used again yet


def test_a_ps_that_came_back_is_lost_no_more(servers, reported):
    servers.broke(1)
    servers.lose(1)
    servers.report_all_lost()
    servers.opened(1)
    assert reported == [{1}, {1}, set()]
    assert not servers.is_lost(1)


def test_where_the_ps_do_not_add_no_view_is_needed_because_of_one(reported):
    servers = Servers(
        3, elastic=True, coordinator_moves=True, add=False, report_lost=reported.append
    )
    # A worker that joins waits for none that it has not reached yet.
    assert servers.wait_until_ready(0)
    for ps in range(3):
        servers.opened(ps)
    assert servers.broke(1)
    assert not servers.wait_until_ready(0)  # the next report tells who is lost
    assert servers.reaches_used
    assert servers.lose(1)
    assert servers.wait_until_ready(0)
    assert servers.is_lost(1)
    servers.opened(1)
    servers.report_all_lost()
    assert not reported


def test_ps_0_is_never_lost_and_none_unless_elastic(servers):
    servers.broke(0)
    assert not servers.lose(0)
    assert not servers.wait_until_ready(0)
    assert not Servers(2, elastic=False, report_lost=lambda lost: None).lose(1)
