"""The tables in the docstring of transitions.py, checked with a real coordinator."""

import pytest

from terngrad.exchange.parameter_server.coordination import transitions
from terngrad.exchange.parameter_server.coordination.coordinator import Coordinator
from terngrad.exchange.parameter_server.coordination.situation import Rules
from terngrad.exchange.parameter_server.coordination.transitions import (
    PHASE_AFTER,
    STATUS_AFTER,
    Phase,
    Status,
    TrainingEvent,
    WorkerEvent,
)
from terngrad.service.messages import Report

SECS = 10.0


def tables():
    """Returns the tables of the docstring: the next state, by state and event."""
    found, events = [], []
    for line in transitions.__doc__.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("  |") or set(cells[0]) == {"-"}:
            continue
        if not cells[0]:
            events = cells[1:]
            found.append({})
        else:
            row = zip(events, cells[1:], strict=True)
            found[-1] |= {(cells[0], event): after for event, after in row}
    return found


STATUSES, PHASES = tables()


@pytest.mark.parametrize(
    ("documented", "used", "events"),
    [(STATUSES, STATUS_AFTER, WorkerEvent), (PHASES, PHASE_AFTER, TrainingEvent)],
    ids=["workers", "training"],
)
def test_the_docstring_has_the_tables_that_the_code_uses(documented, used, events):
    assert documented == {
        (state.name, event.name): used[state][event].name if event in used[state] else ""
        for state in used
        for event in events
    }


class Training:
    """A coordinator of workers 0 and 1; worker 1 is observed, and worker 0 causes events."""

    def __init__(self):
        self.now, self.view = 0.0, 0
        rules = Rules(needed=2, elastic=True, timeout_secs=SECS)
        self.coordinator = Coordinator(["a:1", "b:2"], rules, self.note, clock=lambda: self.now)
        self.coordinator.connect(0)

    def note(self, worker, order):
        self.view = order.view.number or self.view

    def hear(self, worker, **what):
        self.coordinator.hear(worker, Report(**what))

    def stand(self, worker):
        self.coordinator.connect(0)  # a view waits for worker 0 as well
        self.hear(worker, standing={"is_live": True, "view": self.view})

    def abandon(self):
        """Lets worker 0 wait for too long."""
        self.stand(0)
        self.now += 10 * SECS + 1
        self.coordinator.watch()

    def apply(self, event):
        {
            WorkerEvent.CONNECT: lambda: self.coordinator.connect(1),
            WorkerEvent.DISCONNECT: lambda: self.coordinator.disconnect(1, "died"),
            WorkerEvent.STAND: lambda: self.stand(1),
            WorkerEvent.INSTALL: lambda: self.stand(0),
            WorkerEvent.DISMISS: lambda: self.hear(0, bye=True),
            WorkerEvent.ABANDON: self.abandon,
            WorkerEvent.FINISH: lambda: self.hear(1, bye=True),
            TrainingEvent.ASK: lambda: self.stand(0),
            TrainingEvent.INSTALL: lambda: self.stand(0),
            TrainingEvent.DISMISS: lambda: self.hear(0, bye=True),
            TrainingEvent.END: lambda: self.hear(0, failed="diverged"),
        }[event]()


_STANDING = [WorkerEvent.CONNECT, WorkerEvent.STAND]
_TRAINING = [*_STANDING, WorkerEvent.INSTALL]
WAY_TO_STATUS = {
    Status.AWAY: [],
    Status.CONNECTED: [WorkerEvent.CONNECT],
    Status.STANDING: _STANDING,
    Status.TRAINING: _TRAINING,
    Status.DISMISSED: [*_STANDING, WorkerEvent.DISMISS],
    Status.HUNG: [*_TRAINING, WorkerEvent.ABANDON],
    Status.RECONNECTED: [*_TRAINING, WorkerEvent.ABANDON, WorkerEvent.CONNECT],
    Status.FINISHED: [WorkerEvent.CONNECT, WorkerEvent.FINISH],
}
WAY_TO_PHASE = {
    Phase.STARTING: [WorkerEvent.CONNECT],
    Phase.FORMING: _STANDING,
    Phase.STEPPING: _TRAINING,
    Phase.CLOSING: [*_STANDING, TrainingEvent.DISMISS],
    Phase.ENDED: [TrainingEvent.END],
}
FROM_OUTSIDE = {
    WorkerEvent.CONNECT,
    WorkerEvent.DISCONNECT,
    WorkerEvent.STAND,
    WorkerEvent.FINISH,
}


def walked(way):
    training = Training()
    for event in way:
        training.apply(event)
    return training


@pytest.mark.parametrize(
    ("status", "event"),
    [key for key, after in STATUSES.items() if after or WorkerEvent[key[1]] in FROM_OUTSIDE],
)
def test_a_worker_changes_its_status_as_the_table_says(status, event):
    training = walked(WAY_TO_STATUS[Status[status]])
    assert training.coordinator.status(1) is Status[status]
    training.apply(WorkerEvent[event])
    assert training.coordinator.status(1) is Status[STATUSES[status, event] or status]


@pytest.mark.parametrize(("phase", "event"), [key for key, after in PHASES.items() if after])
def test_a_training_changes_its_phase_as_the_table_says(phase, event):
    training = walked(WAY_TO_PHASE[Phase[phase]])
    assert training.coordinator.phase is Phase[phase]
    training.coordinator.connect(0)
    training.apply(TrainingEvent[event])
    assert training.coordinator.phase is Phase[PHASES[phase, event]]


def test_an_ended_training_stays_ended():
    training = walked(WAY_TO_PHASE[Phase.ENDED])
    for event in (WorkerEvent.CONNECT, *TrainingEvent):
        training.apply(event)
        assert training.coordinator.phase is Phase.ENDED
