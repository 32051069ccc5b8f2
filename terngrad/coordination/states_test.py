"""The tables of states, checked with a real coordinator, and what is known about lost workers."""

import pytest

from terngrad.coordination.states import (
    PHASE_AFTER,
    STATUS_AFTER,
    CoordinatorState,
    Phase,
    Rules,
    Status,
    TrainingEvent,
    WorkerEvent,
)
from terngrad.testing.coordination import SECS, CoordinatedWorkers


class Training(CoordinatedWorkers):
    """Worker 1 is observed, and worker 0 causes events."""

    def __init__(self, events):
        super().__init__(2, elastic=True)
        self.connect(0)
        for event in events:
            self.apply(event)

    def report_of(self, worker):
        self.connect(0)  # a view waits for worker 0 as well
        self.report_live(worker, steps=0, view=self.coordinator.state.view)

    def abandon(self):
        """Lets worker 0 wait for too long."""
        self.report_of(0)
        self.pass_secs(10 * SECS + 1)

    def apply(self, event):
        {
            WorkerEvent.CONNECT: lambda: self.connect(1),
            WorkerEvent.DISCONNECT: lambda: self.lose(1),
            WorkerEvent.REPORT: lambda: self.report_of(1),
            WorkerEvent.INSTALL: lambda: self.report_of(0),
            WorkerEvent.DISMISS: lambda: self.send(0, bye=True),
            WorkerEvent.ABANDON: self.abandon,
            WorkerEvent.FINISH: lambda: self.send(1, bye=True),
            TrainingEvent.ASK: lambda: self.report_of(0),
            TrainingEvent.INSTALL: lambda: self.report_of(0),
            TrainingEvent.DISMISS: lambda: self.send(0, bye=True),
            TrainingEvent.END: lambda: self.send(0, failed="diverged"),
        }[event]()

    @property
    def status(self):
        return self.coordinator.state.records[1].status

    @property
    def phase(self):
        return self.coordinator.state.phase


_WAITING = [WorkerEvent.CONNECT, WorkerEvent.REPORT]
_TRAINING = [*_WAITING, WorkerEvent.INSTALL]
WAY_TO_STATUS = {
    Status.DISCONNECTED: [],
    Status.CONNECTED: [WorkerEvent.CONNECT],
    Status.WAITING: _WAITING,
    Status.TRAINING: _TRAINING,
    Status.DISMISSED: [*_WAITING, WorkerEvent.DISMISS],
    Status.HUNG: [*_TRAINING, WorkerEvent.ABANDON],
    Status.RECONNECTED: [*_TRAINING, WorkerEvent.ABANDON, WorkerEvent.CONNECT],
    Status.FINISHED: [WorkerEvent.CONNECT, WorkerEvent.FINISH],
}
WAY_TO_PHASE = {
    Phase.STARTING: [WorkerEvent.CONNECT],
    Phase.FORMING: _WAITING,
    Phase.STEPPING: _TRAINING,
    Phase.CLOSING: [*_WAITING, TrainingEvent.DISMISS],
    Phase.ENDED: [TrainingEvent.END],
}
FROM_OUTSIDE = (
    WorkerEvent.CONNECT,
    WorkerEvent.DISCONNECT,
    WorkerEvent.REPORT,
    WorkerEvent.FINISH,
)
OF_A_WORKER = {*STATUS_AFTER, *((status, event) for status in Status for event in FROM_OUTSIDE)}
by_name = lambda keys: sorted(keys, key=str)
named = lambda state: state.name


@pytest.mark.parametrize(("status", "event"), by_name(OF_A_WORKER), ids=named)
def test_a_worker_changes_its_status_as_the_table_says_and_else_keeps_it(status, event):
    training = Training(WAY_TO_STATUS[status])
    assert training.status is status
    training.apply(event)
    assert training.status is STATUS_AFTER.get((status, event), status)


@pytest.mark.parametrize(("phase", "event"), by_name(PHASE_AFTER), ids=named)
def test_a_training_changes_its_phase_as_the_table_says(phase, event):
    training = Training(WAY_TO_PHASE[phase])
    assert training.phase is phase
    training.connect(0)
    training.apply(event)
    assert training.phase is PHASE_AFTER[phase, event]


def test_an_ended_training_stays_ended():
    training = Training(WAY_TO_PHASE[Phase.ENDED])
    for event in (WorkerEvent.CONNECT, *TrainingEvent):
        training.apply(event)
        training.pass_secs(SECS)
        assert training.phase is Phase.ENDED


@pytest.fixture(name="now")
def _now():
    return [0.0]


@pytest.fixture(name="state")
def _state(now):
    """Of three workers, of which two have connected."""
    state = CoordinatorState(["a:1", "b:2", "c:3"], Rules(3, False, SECS), lambda: now[0], 0)
    assert not state.connect(0)
    assert not state.connect(1)
    return state


def test_a_lost_worker_may_come_back_within_the_time_out(state, now):
    now[0] = SECS - 1
    state.lose(1, "died")
    assert (state.connected, state.returning, state.gone) == ({0}, {1, 2}, set())
    now[0] = SECS
    assert (state.returning, state.gone, state.lost) == ({1}, {2}, {1, 2})
    assert state.connect(1)
    assert (state.connected, state.returning) == ({0, 1}, set())


def test_a_worker_that_hangs_is_gone_at_once_but_may_connect_again(state):
    state.lose(1, "hung", hangs=True)
    assert state.gone == {1}
    assert state.connect(1)
    assert (state.gone, state.connected, state.responsive) == (set(), {0, 1}, {0})


def test_a_worker_that_has_finished_is_neither_connected_nor_lost(state):
    state.records[1].change(WorkerEvent.FINISH)
    assert (state.connected, state.lost) == ({0}, {2})


def test_messages_name_workers_and_say_how_they_were_lost(state):
    state.lose(1, "died")
    died = "worker 1 (b:2) died, and did not come back within 10 s"
    assert state.explain([2, 1]) == f"{died}, worker 2 (c:3) did not join within 10 s"
    assert state.names([1, 0]) == "worker 0 (a:1), worker 1 (b:2)"
