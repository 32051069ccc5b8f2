"""Processes learn each other's addresses from the driver; unknown callers do not."""

import contextlib
import shutil
import socket
import threading

import pytest

from terngrad.spark.certificates import make_certificates
from terngrad.spark.driver import Driver, DriverConnection, Placement, ProcessId
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import wait_until

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
    made = Driver(certificates, 2, shown.append)
    made.shown = shown
    yield made
    made.close()


def run_all(placement, *processes):
    """What each process receives, or why it was refused; all start at once."""
    found = {}

    def run(process, address):
        placement.enter(process, address)
        try:
            found[process] = placement.wait_for_addresses(process, address)
        except ValueError as error:
            found[process] = str(error)

    threads = [threading.Thread(target=run, args=each) for each in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


WORKERS = (ProcessId("worker", 0), "a:1"), (ProcessId("worker", 1), "b:2")
PS = ProcessId("ps", 0), "c:3"


def test_all_learn_all_addresses():
    addresses = {"worker": ["a:1", "b:2"], "ps": ["c:3"]}
    found = run_all(Placement(2, 1, HOSTS), *WORKERS, PS)
    assert set(map(str, found.values())) == {str(addresses)}


def test_a_process_that_has_ended_is_not_counted():
    placement = Placement(2, 1, HOSTS)
    for process in (*WORKERS, PS):  # one after the other, as if there were one core
        placement.enter(*process)
        assert placement.num_running == 1
        placement.leave(*process)
    assert not placement.wait_for_start(0)
    placement.enter(WORKERS[0][0], "a:9")  # Spark has started it again
    placement.leave(*WORKERS[0])  # the driver notices late that the first one has ended
    assert placement.num_running == 1
    placement.enter(*WORKERS[1])
    placement.enter(*PS)
    assert placement.wait_for_start(0)
    assert placement.wait_for_addresses(*PS)["worker"] == ["a:9", "b:2"]


def test_the_end_refuses_waiting_processes():
    placement = Placement(2, 1, HOSTS)
    ending = threading.Timer(0.1, placement.end, ["too few cores"])
    ending.start()
    found = run_all(placement, WORKERS[0], PS)
    assert set(found.values()) == {"too few cores"}
    assert placement.wait_for_start(0)


@pytest.mark.parametrize("has_started", [False, True])
def test_a_stop_refuses_processes_unless_all_have_started(driver, has_started):
    placement = Placement(2, 1, HOSTS)
    driver.serve(placement)
    if has_started:
        run_all(placement, *WORKERS, PS)
    driver.stop()
    assert placement.wait_for_start(0)
    assert placement.is_stopped != has_started
    found = run_all(placement, WORKERS[0])
    assert (found[WORKERS[0][0]] == "the cluster was stopped") != has_started
    later = Placement(2, 1, HOSTS)
    driver.serve(later)
    assert later.is_stopped


@pytest.mark.parametrize(
    ("workers", "process", "why"),
    [
        (1, ProcessId("worker", 1), "there is no worker 1; allowed are 0 to 0"),
        (0, ProcessId("worker", 1), "there is no worker 1; this cluster has none"),
        (1, PS[0], "there is no ps 0; this cluster has none"),
        (1, ProcessId("other", 0), "there is no other 0; this cluster has none"),
    ],
)
def test_a_process_that_does_not_exist_is_refused(workers, process, why):
    assert run_all(Placement(workers, 0, HOSTS), (process, "a:1")) == {process: why}


def test_a_restarted_process_keeps_its_address_but_a_ps_must_not_move():
    placement = Placement(2, 1, HOSTS)
    run_all(placement, *WORKERS, PS)
    again = ProcessId("worker", 0)
    assert run_all(placement, (again, "late:9"))[again]["worker"] == ["a:1", "b:2"]
    assert run_all(placement, (PS[0], "c:8"))[PS[0]]["ps"] == ["c:3"]
    assert not placement.moved
    assert run_all(placement, (PS[0], "z:9"))[PS[0]] == "ps 0 moved from c to z" == placement.moved


def test_a_ps_where_its_certificate_is_not_valid_is_refused():
    placement = Placement(0, 1, HOSTS)
    found = run_all(placement, (PS[0], "late:3"))
    assert "ps 0 is on late, where there was no executor" in found[PS[0]]
    assert placement.num_running == 0


def test_a_worker_that_a_ps_would_refuse_is_refused_before():
    worker = ProcessId("worker", 0)
    found = run_all(Placement(1, 1, HOSTS), (worker, "late:3"))
    assert "worker 0 is on late, where there was no executor" in found[worker]
    assert run_all(Placement(1, 0, HOSTS), (worker, "late:3"))[worker]["worker"] == ["late:3"]


def test_the_key_is_not_shown(certificates):
    assert "PRIVATE" in certificates.key
    assert "PRIVATE" not in repr(certificates)


def test_lines_have_the_label_of_their_process_and_requests_reach_it(driver, certificates):
    driver.serve(Placement(0, 1, HOSTS))
    connection = DriverConnection(
        (HOST, driver.port), certificates, ProcessId("ps", 0), "c:3", needs_addresses=True
    )
    assert connection.addresses() == {"worker": [], "ps": ["c:3"]}
    driver.stop()
    assert next(connection.requests()) == "stop"
    connection.send("first")
    connection.send("second")
    wait_until(lambda: len(driver.shown) == 2, "for two lines")
    assert driver.shown == ["[ps 0] first", "[ps 0] second"]
    connection.close()


def test_a_process_runs_while_its_connection_is_open(driver, certificates):
    placement = Placement(2, 0, HOSTS)
    driver.serve(placement)
    assert placement.num_running == 0
    connection = DriverConnection((HOST, driver.port), certificates, *WORKERS[0])
    wait_until(lambda: placement.num_running, "for a process that runs")
    assert placement.num_running == 1
    connection.close()
    wait_until(lambda: placement.num_running == 0, "for the end of the process")


def test_a_refused_process_learns_why(driver, certificates):
    driver.serve(Placement(1, 0, HOSTS))
    connection = DriverConnection(
        (HOST, driver.port), certificates, ProcessId("worker", 4), "c:3", needs_addresses=True
    )
    with pytest.raises(ValueError, match="there is no worker 4; allowed are 0 to 0"):
        connection.addresses()
    connection.close()


def test_unknown_callers_get_no_answer_and_do_no_harm(driver, certificates):
    with socket.create_connection((HOST, driver.port)) as plain:
        plain.sendall(
            b'{"job": "worker", "index": 0, "address": "x:1", "is_output": false, '
            b'"needs_addresses": true}\n'
        )
        plain.settimeout(HANG_SECS)
        with contextlib.suppress(ConnectionResetError):
            assert b"worker" not in plain.recv(1000)
    others = make_certificates([HOST])
    with pytest.raises(OSError, match="certificate"):
        DriverConnection((HOST, driver.port), others, ProcessId("worker", 0), "x:1")
    driver.serve(Placement(1, 0, HOSTS))
    connection = DriverConnection(
        (HOST, driver.port), certificates, ProcessId("worker", 0), "a:1", needs_addresses=True
    )
    assert connection.addresses()["worker"] == ["a:1"]
    connection.close()
