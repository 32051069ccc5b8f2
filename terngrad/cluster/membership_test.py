"""Members agree, leave and are lost, between threads and sockets of this process."""

import contextlib
import dataclasses
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from terngrad.cluster.admission import join
from terngrad.cluster.errors import MembershipError, SharedError
from terngrad.cluster.membership import Membership, sleep, with_final_actions
from terngrad.cluster.progress import ProcessProgress
from terngrad.connect.config import ConnectConfig
from terngrad.testing.addresses import free_address
from terngrad.testing.threads import TIMEOUT, hosts_of, in_threads

SHORT = 4.0  # seconds of a `Clock` after which a silent process counts as lost
BEAT = 1.0  # seconds between its heartbeats then
LONG = 5 * SHORT  # in which a loss is found, although heartbeats may be some beats late


class Clock:
    """The time of some members; it passes only when a test says so."""

    def __init__(self):
        self.now, self.sleepers, self.members = 0.0, 0, []
        self._until = {}  # when each thread wakes
        self._changed = threading.Condition()

    def sleep(self, secs):
        with self._changed:
            self._until[threading.current_thread()] = until = self.now + secs
            self._changed.wait_for(lambda: self.now >= until)
            return self.now

    def advance(self, secs):
        """Wakes those whose sleep is over, and waits until all sleep again or have ended."""
        await_that(self._all_sleep)
        with self._changed:
            self.now += secs
            self._changed.notify_all()
        await_that(self._all_sleep)

    def end(self):
        """Ends the members' threads."""
        for member in self.members:
            member._over = True
        with self._changed:
            self.now = math.inf
            self._changed.notify_all()

    def _all_sleep(self):
        with self._changed:
            sleeps = [until > self.now or not t.is_alive() for t, until in self._until.items()]
        return len(sleeps) == self.sleepers and all(sleeps)


@pytest.fixture(name="clock")
def _clock():
    clock = Clock()
    yield clock
    clock.end()


def await_that(condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def pass_time(clock, members, secs, silent=(), at_once=BEAT):
    """Lets time pass, until a member finds a loss; all but the silent ones hear each other."""
    hears = lambda member, peer: peer.received_at >= member._clock - 2 * BEAT
    for _ in range(round(secs / at_once)):
        clock.advance(at_once)
        if any(member._over for member in members):
            return
        for member in members:
            for rank, peer in member._peers.items():
                await_that(lambda m=member, r=rank, p=peer: r in silent or hears(m, p))


def join_all(count, timeout_secs=TIMEOUT, all_progress=None, addresses=None, clock=None):
    """Returns the members and a queue of the losses they report: (rank, text)."""
    address, losses, hosts = free_address(), queue.Queue(), hosts_of(count)
    configs = [ConnectConfig(hosts, rank, (), TIMEOUT) for rank in range(count)]
    peers = in_threads(*(lambda config=config: join(config, address) for config in configs))
    members = [
        Membership(
            dataclasses.replace(configs[rank], timeout_secs=timeout_secs),
            peers[rank],
            on_loss=lambda text, rank=rank: losses.put((rank, text)),
            progress=all_progress and all_progress[rank],
            addresses=addresses[rank] if addresses else {},
            sleep=clock.sleep if clock else sleep,
        )
        for rank in range(count)
    ]
    if clock:
        clock.sleepers, clock.members = count * (2 if addresses else 1), members
    return members, losses


def end(members):
    in_threads(*(lambda m=m: m.__exit__(None, None, None) for m in members))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_join_agree_and_leave_without_a_loss(count):
    members, losses = join_all(count)
    for configuration in ({"layout": "abc"}, {"parameters": "def"}):
        calls = (lambda m=m, f=configuration: m.agree(f) for m in members)
        assert in_threads(*calls) == [None] * count
    end(members)
    assert losses.empty()


def test_law_10_a_difference_is_named_with_both_values():
    members, _ = join_all(3)
    configuration = [{"batch_size": "32", "net": "lenet"}] * 2 + [
        {"batch_size": "16", "net": "lenet"}
    ]
    errors = in_threads(
        *(lambda m=m, f=f: m.agree(f) for m, f in zip(members, configuration, strict=True))
    )
    text = r"batch_size is 16 on worker 2 \(host2:2222\) and 32 on worker 0 \(host0:2222\)"
    for error in errors:
        with pytest.raises(MembershipError, match=text):
            raise error
    for member in members:  # which may go on after the error, and must not wait for the others
        for _ in range(2):
            with pytest.raises(MembershipError, match="left before all workers had agreed"):
                member.agree({})


def test_each_wait_for_a_process_that_has_left_fails():
    members, _ = join_all(2)
    members[1].__exit__(None, None, None)
    for _ in range(2):
        with pytest.raises(MembershipError, match="left before all workers had agreed"):
            members[0].agree({})


def test_a_setting_that_only_one_process_has_is_named():
    members, _ = join_all(2)
    errors = in_threads(lambda: members[0].agree({}), lambda: members[1].agree({"seed": "1"}))
    assert "seed is 1 on worker 1" in str(errors[0])


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_process_that_dies_is_named_to_all_others(lost):
    members, losses = join_all(3)
    for peer in members[lost]._peers.values():  # the kernel closes them so after kill -9
        peer.left = True
        peer.close()
    reported = dict(losses.get(timeout=TIMEOUT) for _ in range(2))
    assert reported.keys() == {0, 1, 2} - {lost}
    for text in reported.values():
        assert f"worker {lost} (host{lost}:2222) died" in text


def test_a_process_that_another_than_the_chief_cannot_reach_is_named_to_all(clock):
    closed, all_progress = free_address(), [ProcessProgress() for _ in range(3)]
    with socket.create_server(("127.0.0.1", 0)) as open_port:
        reached = "{}:{}".format(*open_port.getsockname())
        addresses = [{1: reached, 2: reached}, {0: reached, 2: closed}, {0: reached, 1: reached}]
        members, losses = join_all(3, SHORT, all_progress, addresses, clock)
        pass_time(clock, members, 2 * SHORT)
        assert losses.empty()  # nobody makes steps yet
        with contextlib.ExitStack() as stack:
            for progress in all_progress:
                stack.enter_context(progress.steps(0))
            pass_time(clock, members, LONG)
            reported = dict(losses.get(timeout=TIMEOUT) for _ in range(3))
    assert reported.keys() == {0, 1, 2}
    for text in reported.values():
        assert "worker 2 (host2:2222) cannot be reached from worker 1 (host1:2222)" in text


def test_a_process_that_hangs_is_named(monkeypatch, clock):
    members, losses = join_all(2, SHORT, clock=clock)
    for peer in members[1]._peers.values():
        monkeypatch.setattr(peer, "send", lambda message: None)
    pass_time(clock, members, SHORT, silent=[1])
    assert losses.empty()
    pass_time(clock, members, BEAT, silent=[1])
    found = dict(losses.get(timeout=TIMEOUT) for _ in members)  # either may report first
    assert "worker 1 (host1:2222) hangs: it sent nothing for 5 s" in found[0]


def test_the_others_learn_why_a_process_fails():
    members, losses = join_all(2)
    error = ValueError("train-00001: record 7 is damaged")
    members[1].__exit__(type(error), error, None)
    rank, text = losses.get(timeout=TIMEOUT)
    assert rank == 0
    assert "worker 1 (host1:2222) failed: train-00001: record 7 is damaged" in text


def test_the_others_blame_nobody_for_an_error_that_all_have():
    members, losses = join_all(2)
    error = SharedError("step 7: entropy_loss is nan")
    members[1].__exit__(type(error), error, None)
    text = "worker 0 (host0:2222) ends: step 7: entropy_loss is nan"
    assert losses.get(timeout=TIMEOUT) == (0, text)


def test_the_others_learn_which_signal_stopped_a_process():
    members, losses = join_all(2)
    members[0].__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert "worker 0 (host0:2222) failed: stopped by SIGINT" in losses.get(timeout=TIMEOUT)[1]


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_all_wait_for_one_that_comes_late_to_agree_as_long_as_it_lives(slow, clock):
    members, losses = join_all(3, SHORT, clock=clock)
    agreed = []

    def agree(rank):
        if rank == slow:
            pass_time(clock, members, 2 * SHORT)
            assert not agreed
        members[rank].agree({})
        agreed.append(rank)

    assert in_threads(*(lambda rank=rank: agree(rank) for rank in range(3))) == [None] * 3
    end(members)
    assert losses.empty()


@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_law_10_one_that_ends_before_all_agree_is_named(how):
    members, _ = join_all(2)

    def go():
        if how == "leaves":
            members[1].__exit__(None, None, None)
        else:
            members[1]._peers[0].close()

    error, _ = in_threads(lambda: members[0].agree({}), go)
    assert str(error) == "worker 1 (host1:2222) left before all workers had agreed"


def test_a_chief_that_leaves_early_is_named_at_once_and_keeps_its_exit_status():
    all_progress = [ProcessProgress(), ProcessProgress()]
    members, losses = join_all(2, all_progress=all_progress)
    all_progress[1].begin("barrier")
    end(members[:1])
    rank, text = losses.get(timeout=TIMEOUT)
    assert (rank, text[:42]) == (1, "worker 1 (host1:2222) ends: worker 0 (host")
    assert "left after 0 operations with the others" in text
    end(members[1:])
    assert losses.empty()


def test_members_in_different_operations_are_named_by_all(clock):
    all_progress = [ProcessProgress(), ProcessProgress(), ProcessProgress()]
    members, losses = join_all(3, SHORT, all_progress, clock=clock)
    for progress in all_progress:
        progress.begin("a step")
    for progress, what in zip(all_progress[1:], ("all_gather", "a step"), strict=True):
        progress.begin(what)  # while the chief computes
    all_progress[0].begin("a step")
    pass_time(clock, members, LONG)
    found = dict(losses.get(timeout=TIMEOUT) for _ in members)
    where = "all_gather on worker 1 (host1:2222)"
    assert sorted(found) == [0, 1, 2]
    for text in found.values():
        assert "ends: the workers do not run the same operations: number 2 is" in text
        assert where in text
    end(members)


@pytest.mark.parametrize("stopped_secs", [BEAT, 1000 * SHORT])
def test_neither_a_long_time_nor_a_pause_of_the_whole_job_loses_anybody(stopped_secs, clock):
    members, losses = join_all(2, SHORT, clock=clock)
    pass_time(clock, members, 2 * SHORT)
    # While they were stopped, more time has passed than they slept.
    pass_time(clock, members, stopped_secs, at_once=stopped_secs)
    pass_time(clock, members, 2 * SHORT)
    assert losses.empty()
    end(members)


@pytest.mark.parametrize("late", [0, 1, 2])
def test_one_that_gets_no_batch_while_the_others_wait_is_named(late, clock):
    all_progress = [ProcessProgress() for _ in range(3)]
    members, losses = join_all(3, SHORT, all_progress, clock=clock)
    for progress in all_progress:
        progress.batches = 7
    all_progress[late].batches = 6
    pass_time(clock, members, SHORT)
    assert losses.empty()
    pass_time(clock, members, LONG)
    reported = dict(losses.get(timeout=TIMEOUT) for _ in members)
    text = f"worker {late} (host{late}:2222): no next batch for {SHORT:g} s while the others wait"
    assert {rank: message.endswith(text) for rank, message in reported.items()} == dict.fromkeys(
        range(3), True
    )


@pytest.mark.parametrize("batches", [(7, 7, 7), (None, 7, 7), (7, None, 6 + 1)])
def test_one_that_computes_or_saves_for_long_is_not_behind(batches, clock):
    all_progress = [ProcessProgress() for _ in range(3)]
    members, losses = join_all(3, SHORT, all_progress, clock=clock)
    for progress, count in zip(all_progress, batches, strict=True):
        progress.batches = count
    pass_time(clock, members, 2 * SHORT)
    assert losses.empty()
    end(members)


MEMBER = """
import dataclasses, sys, time
from terngrad.cluster.admission import join
from terngrad.cluster.membership import Membership
from terngrad.connect.config import ConnectConfig
config = ConnectConfig(["a:1", "b:1"], int(sys.argv[1]))
peers = join(config, sys.argv[2])
Membership(dataclasses.replace(config, timeout_secs=float(sys.argv[3])), peers)
print("in", flush=True)
time.sleep(float(sys.argv[4]))
print("well", flush=True)
sys.stdin.read()
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_pause_of_the_processes_of_a_job_loses_nobody():
    address = free_address()
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(rank), address, "2", "9"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for member in members:
            assert member.stdout.readline() == "in\n"
        for number, seconds in ((signal.SIGSTOP, 5.0), (signal.SIGCONT, 0.0)):
            for member in members:
                member.send_signal(number)
            time.sleep(seconds)
        assert [member.stdout.readline() for member in members] == ["well\n"] * 2
    finally:
        for member in members:
            member.kill()
            member.communicate()


@pytest.mark.parametrize(
    "stderr", ["closed", "broken", pytest.param("full", marks=pytest.mark.slow)]
)
def test_a_process_ends_even_if_nobody_reads_its_last_message(stderr):
    code = "from terngrad.cluster.membership import end_process; end_process('x' * 1000)"
    if stderr == "closed":
        code = f"import sys; sys.stderr.close(); {code}"
    reader, writer = os.pipe()
    if stderr == "broken":
        os.close(reader)
    if stderr == "full":
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x")
        os.set_blocking(writer, True)
    assert subprocess.run([sys.executable, "-c", code], stderr=writer, timeout=TIMEOUT).returncode
    os.close(writer)
    if stderr != "broken":
        os.close(reader)


def test_a_process_that_awaits_a_loss_does_not_end_while_another_thread_handles_it():
    address, hosts, handled = free_address(), hosts_of(2), []
    configs = [ConnectConfig(hosts, rank, (), TIMEOUT) for rank in (0, 1)]
    peers = in_threads(*(lambda config=config: join(config, address) for config in configs))
    short, is_losing = 0.1, threading.Event()  # the other one does not even beat

    def on_loss(text):
        is_losing.set()
        time.sleep(5 * short)
        handled.append(text)

    config = dataclasses.replace(configs[0], timeout_secs=short)
    with Membership(config, peers[0], on_loss=on_loss) as member:
        assert is_losing.wait(TIMEOUT)
        member.await_loss()
        assert len(handled) == 1 and "worker 1" in handled[0]


def test_an_act_that_fails_does_not_suppress_the_last_message():
    def broken():
        raise RuntimeError("no more threads")

    said = with_final_actions("worker 0 ends", [lambda: "saved x", lambda: "", broken])
    assert said == "worker 0 ends; saved x; not saved: no more threads"
