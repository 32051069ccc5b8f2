"""Processes meet at the driver; strangers do not."""

import contextlib
import shutil
import socket
import threading

import pytest

from terngrad.spark.certificates import make_certificates
from terngrad.spark.driver import Driver, Line, Placement, Seat
from terngrad.testing.limits import HANG_SECS

HOST = "127.0.0.1"
HOSTS = ("a", "b", "c", "z")


@pytest.fixture(scope="module")
def certificates():
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl")
    return make_certificates([HOST, "some.host"])


@pytest.fixture
def driver(certificates):
    shown = []
    made = Driver(certificates, 2, 30.0, shown.append)
    made.shown = shown
    yield made
    made.close()


def took(placement, *seats):
    """What each seat learns, or why it was refused; all take their seats at once."""
    found = {}

    def take(seat, address):
        try:
            found[seat] = placement.take(seat, address, 0.2)
        except ValueError as error:
            found[seat] = str(error)

    threads = [threading.Thread(target=take, args=seat) for seat in seats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


WORKERS = (Seat("worker", 0), "a:1"), (Seat("worker", 1), "b:2")
PS = Seat("ps", 0), "c:3"


def test_all_learn_all_addresses():
    addresses = {"worker": ["a:1", "b:2"], "ps": ["c:3"]}
    assert set(map(str, took(Placement(2, 1, HOSTS), *WORKERS, PS).values())) == {str(addresses)}


def test_who_waits_too_long_learns_how_many_are_missing():
    found = took(Placement(2, 1, HOSTS), WORKERS[0], PS)
    assert all("only 2 of 3 processes have started" in text for text in found.values())


def test_a_seat_that_does_not_exist_is_refused():
    assert took(Placement(1, 0, HOSTS), WORKERS[1]) == {Seat("worker", 1): "there is no 1"}


def test_who_comes_again_keeps_the_address_but_a_ps_must_not_move():
    placement = Placement(2, 1, HOSTS)
    took(placement, *WORKERS, PS)
    again = Seat("worker", 0)
    assert took(placement, (again, "z:9"))[again]["worker"] == ["a:1", "b:2"]
    assert took(placement, (PS[0], "c:8"))[PS[0]]["ps"] == ["c:3"]
    assert not placement.moved
    assert took(placement, (PS[0], "z:9"))[PS[0]] == "ps 0 moved from c to z" == placement.moved


def test_a_ps_where_its_certificate_is_not_valid_is_refused():
    found = took(Placement(0, 1, HOSTS), (PS[0], "late:3"))
    assert "ps 0 is on late, where there was no executor" in found[PS[0]]


def test_a_worker_that_a_ps_would_refuse_is_refused_before():
    worker = Seat("worker", 0)
    found = took(Placement(1, 1, HOSTS), (worker, "late:3"), PS)
    assert "worker 0 is on late, where there was no executor" in found[worker]
    assert took(Placement(1, 0, HOSTS), (worker, "late:3"))[worker]["worker"] == ["late:3"]


def test_the_key_is_not_shown(certificates):
    assert "PRIVATE" in certificates.key
    assert "PRIVATE" not in repr(certificates)


def test_lines_have_the_label_of_their_process_and_requests_reach_it(driver, certificates):
    driver.expect(Placement(0, 1, HOSTS))
    line = Line((HOST, driver.port), certificates, Seat("ps", 0), "c:3")
    assert line.addresses() == {"worker": [], "ps": ["c:3"]}
    driver.stop()
    assert next(line.requests()) == "stop"
    line.tell("first")
    line.tell("second")
    while len(driver.shown) < 2:
        pass
    assert driver.shown == ["[ps 0] first", "[ps 0] second"]
    line.close()


def test_a_refused_process_learns_why(driver, certificates):
    driver.expect(Placement(1, 0, HOSTS))
    line = Line((HOST, driver.port), certificates, Seat("worker", 4), "c:3")
    with pytest.raises(ValueError, match="there is no 4"):
        line.addresses()
    line.close()


def test_strangers_are_not_answered_and_do_no_harm(driver, certificates):
    with socket.create_connection((HOST, driver.port)) as plain:
        plain.sendall(b'{"job": "worker", "index": 0, "address": "x:1", "tells": false}\n')
        plain.settimeout(HANG_SECS)
        with contextlib.suppress(ConnectionResetError):
            assert b"worker" not in plain.recv(1000)
    others = make_certificates([HOST])
    with pytest.raises(OSError, match="certificate"):
        Line((HOST, driver.port), others, Seat("worker", 0), "x:1")
    driver.expect(Placement(1, 0, HOSTS))
    line = Line((HOST, driver.port), certificates, Seat("worker", 0), "a:1")
    assert line.addresses()["worker"] == ["a:1"]
    line.close()
