"""How runs begin and end, and which of them a worker is in, over real connections."""

import dataclasses
from concurrent import futures
from types import SimpleNamespace

import pytest

from terngrad.asynchronous.chief import Chief, RunFile
from terngrad.asynchronous.messages import RunStatus
from terngrad.asynchronous.plan import state_bytes
from terngrad.asynchronous.server import CallHandler
from terngrad.cluster.errors import MembershipError
from terngrad.testing.asynchronous import PLAN, SECS, Worker, serving, two_workers
from terngrad.testing.nets import make_batches


@pytest.mark.slow
@pytest.mark.parametrize("arrives", [False, True])
def test_a_run_begins_though_a_stream_breaks_when_the_state_is_sent(tmp_path, monkeypatch, arrives):
    taken, broken = CallHandler._state, []

    def breaking(caller, call, content):
        reply = taken(caller, call, content) if broken or arrives else None
        if not broken:
            broken.append(True)
            raise OSError  # as if the worker cannot be reached any more
        return reply

    monkeypatch.setattr(CallHandler, "_state", breaking)
    with serving(tmp_path) as (_, hosts):
        worker = Worker(hosts)
        worker.begin()
        assert broken
        assert worker.train(make_batches(), 2).version == 2


@pytest.mark.slow
def test_a_second_process_of_a_connected_worker_waits_until_that_worker_has_left(tmp_path):
    with serving(tmp_path, workers=2) as (_, hosts):
        first, second = Worker(hosts, 0, 2), Worker(hosts, 0, 2)
        first.begin()
        with futures.ThreadPoolExecutor(1) as threads:
            entered = threads.submit(second.client.enter)
            with pytest.raises(futures.TimeoutError):
                entered.result(1.0)
            first.train(make_batches(), 3)
            first.client.close()
            assert entered.result(SECS)[0].version == 3
        assert second.train(make_batches(), 2).version == 5


@pytest.mark.slow
def test_a_waiting_worker_keeps_its_stream_and_enters_the_next_run_before_it_pulls(tmp_path):
    with serving(tmp_path, workers=2) as (servers, hosts):
        chief, other = Worker(hosts, 0, 2), Worker(hosts, 1, 2)
        other.client.enter()
        chief.begin()
        other.client.await_run()
        assert other.client.pull().version == 0
        assert other.log == []
        chief.plan = dataclasses.replace(chief.plan, configuration={"layout": "another"})
        chief.begin_at(servers[0], "another run")
        with pytest.raises(MembershipError, match="layout"):
            other.client.pull()
        assert servers[0].workers.figures.report().workers[1].dropped == 0


@pytest.mark.slow
def test_a_push_into_a_run_that_has_just_begun_enters_that_run(tmp_path):
    with two_workers(tmp_path) as (servers, chief, other):
        pulled = other.client.pull()
        stale = other.gradient(pulled, *next(iter(make_batches())))
        chief.begin_at(servers[0], "another run")
        again = other.client.push(stale, pulled.versions)
        assert again.version == servers[0].store.version == 0
        assert "ended this worker's stream: another run has begun" in other.log[0]
        assert other.client.push(stale, again.versions).version == 1
        assert servers[0].workers.figures.report().workers[1].dropped == 1


@pytest.mark.slow
def test_parameters_of_different_runs_are_not_mixed(tmp_path):
    with serving(tmp_path, 2) as (servers, hosts):
        worker = Worker(hosts)
        worker.begin()
        worker.train(make_batches(), 2)
        worker.begin_at(servers[0], "another run")
        with futures.ThreadPoolExecutor(1) as threads:
            pulled = threads.submit(worker.client.pull)
            with pytest.raises(futures.TimeoutError):
                pulled.result(1.0)
            worker.begin_at(servers[1], "another run")
            assert pulled.result(SECS).versions == (0, 0)


def test_a_worker_that_says_done_too_soon_ends_the_run_for_nobody_else(tmp_path):
    with two_workers(tmp_path, max_steps=5) as (servers, chief, other):
        # A lost ps may have reported the end, and restarted with fewer updates.
        other.client.leave(done=True)
        assert chief.train(make_batches(), 8).version == 5
        assert not servers[0].wait(0.1)
        chief.client.leave(done=True)
        assert servers[0].wait(SECS)
        assert servers[0].workers.why_over == "the run is finished"


@pytest.mark.slow
def test_a_run_that_has_ended_waits_for_a_worker_no_longer_than_the_time_out(tmp_path):
    with two_workers(tmp_path, secs=5.0) as (servers, chief, _other):
        chief.client.leave(stop=True)
        assert servers[0].wait(SECS)
        assert servers[0].workers.present == [1]


def test_a_worker_that_looks_for_a_ps_while_the_run_ends_still_finds_it(tmp_path):
    with serving(tmp_path, workers=2) as (servers, hosts):
        chief, other = Worker(hosts, 0, 2, max_steps=1), Worker(hosts, 1, 2, max_steps=1)
        chief.begin()
        chief.train(make_batches(), 1)
        chief.client.leave(done=True)
        assert not servers[0].wait(0.2)
        other.client.await_run()
        assert other.client.pull().finished
        other.client.leave(done=True)
        assert servers[0].wait(SECS)


@pytest.mark.slow
@pytest.mark.parametrize("saved", [True, False])
def test_workers_learn_whether_the_chief_has_saved_what_it_stopped(tmp_path, saved):
    with two_workers(tmp_path) as (servers, chief, other):
        assert not other.client.pull().stopped
        chief.client.leave(stop=True, saved=saved)
        pulled = other.client.pull()
        assert (pulled.stopped, pulled.saved, pulled.finished) == (True, saved, False)
        assert servers[0].workers.why_over.endswith("has saved" if saved else "has not saved")


@pytest.mark.slow
def test_nothing_is_applied_between_the_last_state_and_the_end(tmp_path):
    with two_workers(tmp_path, 2) as (servers, chief, other):
        pulled = other.client.pull()
        gradient = other.gradient(pulled, *next(iter(make_batches())))
        sizes = [state_bytes(chief.plan, shard) for shard in chief.shards]
        step, states = chief.client.fetch(sizes, last=True)
        with futures.ThreadPoolExecutor(1) as threads:
            pushed = threads.submit(other.client.push, gradient, pulled.versions)
            with pytest.raises(futures.TimeoutError):
                pushed.result(0.3)
            chief.client.leave(stop=True, saved=True)
            assert pushed.result(SECS).stopped
        assert [server.store.state()[1] for server in servers] == states
        assert [server.store.version for server in servers] == [step, step]


@pytest.mark.slow
def test_the_others_go_on_without_a_chief_that_dies_while_it_ends_the_run(tmp_path):
    with two_workers(tmp_path) as (_, chief, other):
        chief.client.fetch([state_bytes(chief.plan, chief.shards[0])], last=True)
        chief.client.close()
        assert other.train(make_batches(), 2)


@pytest.mark.slow
def test_updates_that_are_on_their_way_to_a_ps_are_waited_for(tmp_path):
    with serving(tmp_path, 2) as (servers, hosts):
        worker = Worker(hosts)
        worker.begin()
        pulled = worker.client.pull()
        parts = worker.gradient(pulled, *next(iter(make_batches())))
        servers[0].store.push("a run", 0, 1, 1, 0, parts[0])
        assert not worker.client.await_updates(1, 0.1)
        with futures.ThreadPoolExecutor(1) as threads:
            reached = threads.submit(worker.client.await_updates, 1, SECS)
            servers[1].store.push("a run", 0, 1, 1, 0, parts[1])
            assert reached.result(SECS)


@pytest.mark.parametrize(("versions", "continues"), [((7, 2), True), ((2, 7), False)])
def test_a_checkpoint_is_newer_if_ps_0_has_fewer_updates(tmp_path, versions, continues):
    file, begun = RunFile(str(tmp_path)), []
    file.write(PLAN.run, PLAN.configuration)
    client = SimpleNamespace(
        enter=lambda run: [RunStatus(run, version, False, False) for version in versions],
        begin=lambda plan, states, version: begun.append(version),
    )
    Chief(client, PLAN, SimpleNamespace(pack=list), file, print).begin_or_resume(5, None)
    assert begun == ([] if continues else [5])


def test_the_file_of_a_run_names_it_until_it_has_ended(tmp_path):
    file = RunFile(str(tmp_path))
    assert file.read() == ("", {})
    file.write("a run", {"seed": "1"})
    assert file.read() == ("a run", {"seed": "1"})
    file.remove()
    file.remove()
    assert file.read() == ("", {})


def test_the_file_of_a_run_of_an_earlier_version_is_read(tmp_path):
    (tmp_path / ".asynchronous_run").write_text('{"run": "a run", "facts": {"seed": "1"}}')
    assert RunFile(str(tmp_path)).read() == ("a run", {"seed": "1"})


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"run": 1, "configuration": 2}'])
def test_a_damaged_run_file_names_no_run(tmp_path, text):
    (tmp_path / ".asynchronous_run").write_text(text)
    assert RunFile(str(tmp_path)).read() == ("", {})
