"""Which workers are connected, which may come back, and what messages say about the others."""

import pytest

from terngrad.exchange.parameter_server.coordination.roster import Roster

SECS = 10.0


@pytest.fixture(name="now")
def _now():
    return [0.0]


@pytest.fixture(name="roster")
def _roster(now):
    """The roster of three workers, of which two have connected."""
    roster = Roster(["a:1", "b:2", "c:3"], SECS, lambda: now[0])
    assert not roster.connect(0)
    assert not roster.connect(1)
    return roster


def test_a_worker_that_is_away_may_come_back_within_the_time_out(roster, now):
    now[0] = SECS - 1
    roster.lose(1, "died")
    assert (roster.here, roster.recently_lost(), roster.gone()) == ({0}, {1, 2}, set())
    now[0] = SECS
    assert (roster.recently_lost(), roster.gone(), roster.away) == ({1}, {2}, {1, 2})
    assert roster.connect(1)
    assert (roster.here, roster.recently_lost()) == ({0, 1}, set())


def test_a_worker_that_hangs_is_gone_at_once_but_may_connect_again(roster):
    roster.abandon(1)
    assert roster.gone() == {1}
    assert roster.connect(1)
    assert roster.gone() == set()
    assert (roster.here, roster.able) == ({0, 1}, {0})


def test_a_worker_that_has_finished_is_neither_here_nor_away(roster):
    roster.finish(1)
    assert (roster.here, roster.away) == ({0}, {2})


def test_messages_name_workers_and_say_how_they_were_lost(roster):
    roster.lose(1, "died")
    died = "worker 1 (b:2) died, and did not come back within 10 s"
    assert roster.missing([2, 1]) == f"{died}, worker 2 (c:3) did not join within 10 s"
    assert roster.names([1, 0]) == "worker 0 (a:1), worker 1 (b:2)"
