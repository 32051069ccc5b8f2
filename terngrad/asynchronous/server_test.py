"""A ps of asynchronous training refuses wrong and hostile calls, and says why."""

import dataclasses
import json
import re
import signal
import threading
from unittest import mock

import numpy as np
import pytest

from terngrad.asynchronous import messages, remote
from terngrad.asynchronous.client import Client
from terngrad.asynchronous.messages import (
    BEGIN,
    BYE,
    ENTER,
    FETCH,
    MORE,
    PULL,
    PUSH,
    STATE,
    exactly,
    frames,
)
from terngrad.asynchronous.plan import MAX_ELEMENTS, Plan, PlanError, state_bytes
from terngrad.asynchronous.remote import RemotePs
from terngrad.asynchronous.server import Server
from terngrad.asynchronous.snapshots import SnapshotSettings
from terngrad.asynchronous.store import NoSnapshotError, Store
from terngrad.cluster.errors import MembershipError
from terngrad.cluster.managed.role import Role
from terngrad.connect import calling
from terngrad.connect.channel import ChannelEnd, KeepAlive
from terngrad.exchange.parameter_server.operations import PIECE_BYTES
from terngrad.library import failures
from terngrad.library.join_config import JoinConfig
from terngrad.ops.reference import ReferenceKernels
from terngrad.service.messages import Call, join_frame
from terngrad.testing.addresses import free_addresses
from terngrad.testing.asynchronous import CONFIGURATION, PLAN, gradient
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.ps_clients import WORKERS, admitted, call_ps, config_of, hello_of
from terngrad.training import schedules

SECS = HANG_SECS


@pytest.fixture
def empty(tmp_path):
    """A ps without parameters, and its address."""
    (host,) = free_addresses(1)
    settings = SnapshotSettings(str(tmp_path), 10)
    make = lambda text: schedules.fixed(0.1)
    store = Store(0, 1, WORKERS, ReferenceKernels(), make, settings, print)
    server = Server(config_of([host], 0), store)
    server.start(host)
    yield server, host
    server.close()


@pytest.fixture
def served(empty):
    """A ps that holds the parameters of PLAN, and its address."""
    store = empty[0].store
    plan, shard, size = store.read_plan(PLAN.to_json().encode())
    store.begin(plan, shard, bytes(size), 0)
    return empty


def entry(worker=1, configuration=CONFIGURATION, run=""):
    content = json.dumps({"run": run, "configuration": configuration}).encode()
    return [*frames(Call(act=ENTER, incarnation=7 + worker), content)]


def push(content, sequence=1, version=0):
    return [*frames(Call(act=PUSH, sequence=sequence, version=version), content)]


def refusal(served, *messages, worker=1):
    """Returns the error that ends a caller's stream."""
    hello = hello_of(served[1], worker, "Update")
    end, details = call_ps(served[1], hello, messages=[*messages, *bye()])
    return "" if end is ChannelEnd.DONE else details


def bye():
    return [*frames(Call(act=BYE))]


def test_a_push_is_applied_once_however_often_it_comes(served):
    def values():
        status, content = served[0].store.pulled()
        return status.version, content

    assert refusal(served, *entry(), *push(gradient(word=1), 1), *push(gradient(word=1), 1)) == ""
    assert values()[0] == 1
    once = values()[1]
    assert refusal(served, *entry(), *push(gradient(word=1), 1)) == ""
    assert values() == (1, once)
    assert refusal(served, *entry(), *push(gradient(word=1), 2)) == ""
    assert values()[0] == 2 and values()[1] != once


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (push(gradient()), r"act is 4 in the first call; allowed is 1 \(ENTER\)"),
        ([*entry(), *frames(Call(act=99))], "act is 99; allowed are 1 to 7"),
        ([*entry(), *frames(Call(act=MORE))], "act is 0"),
        ([*entry(), *push(gradient()[:7])], "7 bytes; allowed are 8 to 40"),
        ([*entry(), *push(gradient()[:-4])], "the codes of the gradient: "),
        ([*entry(), join_frame(Call(act=PUSH, size=1 << 60))], "allowed are 8 to 40"),
        ([*entry(), join_frame(Call(act=ENTER, size=1 << 60))], "allowed are 0 to 65536"),
        ([*entry(), join_frame(Call(act=PUSH, sequence=1, size=40), bytes(41))], "more content"),
        ([*entry(), join_frame(Call(act=PUSH, size=40)), *entry()], "another message after 0"),
        ([*entry(), *push(gradient(), 0)], "sequence is 0 in PUSH; allowed are 1 and more"),
        ([*entry(), *push(gradient(np.nan))], "a scale is negative or not finite"),
        (
            [*entry(), *push(gradient(1e30))],
            r"has a value of up to 1e\+30; allowed is up to 1e\+10",
        ),
        (
            [*entry(), *push(gradient(sign=1))],
            "the codes of the gradient: integers are out of range; allowed are -1 to 1",
        ),
        ([*entry(), *frames(Call(act=FETCH), b"1")], "1 bytes; allowed are 0"),
        ([*entry(), *frames(Call(act=BEGIN), b"{}")], "only worker 0 may begin a run"),
        (
            entry(configuration=CONFIGURATION | {"batch_size": "9"}),
            "batch_size is 9 on worker 1 .* and 8 on",
        ),
        (entry(configuration=CONFIGURATION | {"layout": "\ud800"}), r"layout is \? on worker 1"),
        ([*entry(), *frames(Call(act=FETCH, last=True))], "only worker 0 may end a run"),
        ([*entry(), *entry(0)], "incarnation differs from that of the stream's first ENTER"),
        ([*frames(Call(act=ENTER, incarnation=1), b"\xff")], "must be JSON"),
        ([join_frame(Call(act=ENTER, size=2), b'{"'), b"\x07junk"], "must be JSON"),
        ([*entry(), b"\xff\xff"], "a frame does not begin with its header"),
    ],
)
def test_law_10_what_cannot_be_is_named_logged_once_and_disturbs_nobody(
    served, messages, text, capfd
):
    for _ in range(2):
        why = refusal(served, *messages)
        assert re.search(text, why), why
    assert capfd.readouterr().out.count("Refused") == 1
    assert refusal(served, *entry(0), *push(gradient(word=1)), worker=0) == ""
    assert served[0].store.version == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shapes": ((1 << 20, 1 << 20), (3,))}, f"over {MAX_ELEMENTS}; allowed are 1 to"),
        ({"shapes": ((-1, 3), (3,))}, "a shape has a dimension below 1"),
        ({"shapes": ((3,),)}, "2 names and 1 shapes"),
        ({"names": ("a", "a")}, "variable names must be unique"),
        ({"optimizer": "none"}, "optimizer is 'none'; allowed are momentum, adam, gd, rmsprop"),
        ({"nodes": 1 << 20}, "nodes: 1048576; allowed are 1 to"),
        ({"max_steps": 0}, "max_steps: 0; allowed are 1 to"),
        ({"run": "x" * 100}, "run is"),
        ({"pull_bits": 8}, "pull_bits is 8"),
        ({"pull_codec": "5-level"}, "pull_codec is '5-level'; allowed are float, ternary"),
        (
            {"pull_codec": "ternary", "pull_bits": 16},
            "pull_bits is 16; allowed is 32 with pull_codec=ternary",
        ),
        ({"policy": {"grad_bits": 5, "float_layers": []}}, "grad_bits is 5"),
        ({"unknown": 1}, "plan has an unknown field 'unknown'"),
        ({"statistics": 1.0}, "statistics is of type float; allowed is int"),
        ({"shapes": ((10**9,) * 1000, (3,))}, f"over {MAX_ELEMENTS}; allowed are 1 to"),
        ({"run": "\ud800"}, "run is"),
    ],
)
def test_law_10_a_plan_that_cannot_be_is_named_before_anything_is_allocated(served, change, text):
    content = json.dumps(json.loads(PLAN.to_json()) | change).encode()
    why = refusal(served, *entry(0), *frames(Call(act=BEGIN), content), worker=0)
    assert text in why
    assert served[0].store.status.run == PLAN.run


def test_a_state_of_another_size_than_the_plans_is_refused(served):
    begin = [*frames(Call(act=BEGIN), PLAN.to_json().encode())]
    why = refusal(served, *entry(0), *begin, join_frame(Call(act=STATE, size=1 << 50)), worker=0)
    assert "bytes; allowed are 512" in why
    assert "allowed are 0" in refusal(served, *entry(0), *frames(Call(act=STATE), b"1"), worker=0)


def test_an_asynchronous_ps_demands_the_secret(served):
    server, (host,) = served[0], free_addresses(1)
    other = Server(config_of([host], 0, secret=b"a secret of many characters"), server.store)
    other.start(host)
    try:
        _, details = call_ps(host, hello_of(host, purpose="Update"), messages=entry())
        assert "this training was started with a secret, which this process lacks" in details
    finally:
        other.close()


def report_failure(host, why):
    """Tells a ps why worker 0 ends."""
    role = Role(source="test", task_id=0, size=None, worker_hosts=WORKERS, ps_hosts=(host,))
    failures.notify_servers(JoinConfig(role=role, synchronous=False), why, SECS)


def test_law_10_why_the_chief_begins_no_run_reaches_the_others_and_ends_the_ps(empty):
    server, host = empty
    report_failure(host, "--train_dir=/x: is not writable")
    assert not server.wait(0.1)  # another worker may come
    client = Client(config_of([host], 1), [None], 32, CONFIGURATION)
    why = "--train_dir=/x: is not writable"
    with pytest.raises(MembershipError, match=rf"^worker 0 \(one:1\) failed: {why}$"):
        client.await_run()
    client.close()
    assert server.wait(SECS)
    assert server.workers.why_over == f"worker 0 failed: {why}"


def test_a_signal_ends_a_chief_that_reports_why_it_begins_no_run(monkeypatch):
    is_over, threads = threading.Event(), []

    def send(*args):
        threads.append(threading.current_thread())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        is_over.wait(SECS)

    monkeypatch.setattr(calling.ChannelOpener, "send_last", send)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test runner may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            report_failure("nowhere:1", "why")
    finally:
        signal.signal(signal.SIGINT, before)
    assert threads[0].is_alive()  # nothing has waited for it
    assert threads[0].daemon
    is_over.set()


def test_a_chief_that_comes_again_begins_its_run(empty):
    server, host = empty
    report_failure(host, "why")
    assert server.workers.failure == "why"
    begin = [*frames(Call(act=BEGIN), PLAN.to_json().encode())]
    assert refusal(empty, *entry(0), *begin, worker=0) == ""
    assert not server.workers.failure


def test_a_failure_that_the_chief_reports_counts_until_a_run_begins(empty):
    server, host = empty
    client = Client(config_of([host], 0), [None], 32, CONFIGURATION)
    client.enter()
    assert server.workers.present == [0]
    report_failure(host, "the disk is full")
    assert server.workers.failure == "the disk is full"
    *_, size = server.store.read_plan(PLAN.to_json().encode())
    client.begin(PLAN, [bytes(size)], 0)
    assert not server.workers.failure
    client.close()


def test_a_process_that_fails_before_it_joins_does_not_end_a_run(served):
    server, host = served
    report_failure(host, "why")
    assert not server.workers.failure


@pytest.fixture(name="ps")
def _ps(served):
    """The ps as worker 1 sees it, which has entered; its lines are in `log`."""
    lines, alive = [], KeepAlive()
    stopped = lambda: False
    ps = RemotePs(config_of([served[1]], 1), 0, 8, CONFIGURATION, lines.append, stopped, alive)
    ps.log = lines
    ps.enter()
    yield ps
    ps.close()
    alive.stop()


def test_a_worker_whose_messages_a_ps_cannot_take_ends_with_one_line(ps):
    with (
        mock.patch.object(messages, "PIECE_BYTES", 4 * PIECE_BYTES),
        pytest.raises(MembershipError, match=r"refused this worker: .* bytes; allowed are"),
    ):
        ps.call(Call(act=PUSH, sequence=1), bytes(4 * PIECE_BYTES))
    assert not ps.log


def test_a_worker_tries_again_while_a_ps_cannot_write_snapshots(served, ps, monkeypatch):
    errors, push = iter([NoSnapshotError("no space left")] * 2), Store.push

    def fail_twice(*arguments):
        if error := next(errors, None):
            raise error
        return push(*arguments)

    monkeypatch.setattr(Store, "push", fail_twice)
    monkeypatch.setattr(remote, "_UNAVAILABLE_PAUSE_SECS", 0.01)
    ps.call(Call(act=PUSH, sequence=1), gradient(), sizes=[exactly(512)])
    assert served[0].store.version == 1
    assert [line.partition(") ")[2] for line in ps.log] == [
        "cannot apply gradients now: no space left; tries again until it can."
    ]


def test_a_ps_whose_parameters_travel_as_floats_numbers_no_copies(served, ps):
    for named in (0, 5):
        reply, content = ps.call(Call(act=PULL, copy=named), sizes=[exactly(512)])
        assert (reply.copy, reply.coded) == (0, False)
        assert content == served[0].store.pulled()[1]


@pytest.mark.parametrize("error", [AttributeError, OverflowError, RecursionError, IndexError])
def test_a_schedule_that_cannot_be_read_is_named(served, monkeypatch, error):
    def fail(text):
        raise error("why")

    monkeypatch.setattr(served[0].store, "_make_schedule", fail)
    begin = [*frames(Call(act=BEGIN), PLAN.to_json().encode())]
    assert "the plan's schedule cannot be read: why" in refusal(served, *entry(0), *begin, worker=0)


def test_streams_that_never_enter_leave_places_for_those_that_do(served):
    silent = [admitted(served[1], hello_of(served[1], 1, "Update")) for _ in range(50)]
    assert refusal(served, *entry(0), worker=0) == ""
    assert refusal(served, *entry(1)) == ""
    for channel in silent:
        channel.cut()


def test_the_memory_that_copies_of_the_workers_take_is_logged(served, capfd):
    coded = dataclasses.replace(PLAN, pull_codec="ternary", shapes=((50_000, 3), (3,)))
    for plan, line in ((coded, "0.60 MB each, 1.20 MB for all 2"), (PLAN, "")):
        own, shard, size = served[0].store.read_plan(plan.to_json().encode())
        served[0].store.begin(own, shard, bytes(size), 0)
        output = capfd.readouterr().out
        assert line in output and ("keeps a copy of the parameters" in output) == bool(line)


def test_a_plan_survives_its_text():
    assert Plan.from_json(PLAN.to_json()) == PLAN
    earlier = json.loads(PLAN.to_json())
    earlier["policy"] |= {"scaler_sharing": True, "use_encoding": True}
    earlier["facts"] = earlier.pop("configuration")
    assert Plan.from_json(json.dumps(earlier)) == PLAN
    with pytest.raises(PlanError, match="statistics"):
        dataclasses.replace(PLAN, statistics=-1)


def test_the_state_has_the_parameters_the_slots_and_the_averages(served):
    plan = dataclasses.replace(PLAN, optimizer="adam", averages_decay=0.9, statistics=5)
    _, shard, size = served[0].store.read_plan(plan.to_json().encode())
    assert size == state_bytes(plan, shard) == 4 * (4 * 128 + 5)
