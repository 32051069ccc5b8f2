"""The states of a worker and of a training on ps 0, with their transition tables.

A row is a state, a column an event, and a cell the state after it. An empty cell means that the
event does not happen in that state. A worker's standing tells ps 0 the number of steps that it has
made, its last view, and whether it has the state of the training.

A worker (`Status`):

  |             | CONNECT     | DISCONNECT | STAND    | INSTALL  | DISMISS   | ABANDON | FINISH   |
  | ----------- | ----------- | ---------- | -------- | -------- | --------- | ------- | -------- |
  | AWAY        | CONNECTED   |            |          |          |           |         |          |
  | CONNECTED   |             | AWAY       | STANDING |          |           | HUNG    | FINISHED |
  | STANDING    |             | AWAY       | STANDING | TRAINING | DISMISSED |         | FINISHED |
  | TRAINING    |             | AWAY       | STANDING |          |           | HUNG    | FINISHED |
  | DISMISSED   |             | AWAY       | STANDING |          |           | HUNG    | FINISHED |
  | HUNG        | RECONNECTED |            |          |          |           |         |          |
  | RECONNECTED |             | HUNG       | STANDING |          |           |         | FINISHED |
  | FINISHED    | CONNECTED   |            |          |          |           |         |          |

The training (`Phase`):

  |          | ASK     | INSTALL  | DISMISS | END   |
  | -------- | ------- | -------- | ------- | ----- |
  | STARTING | FORMING |          |         | ENDED |
  | FORMING  |         | STEPPING | CLOSING | ENDED |
  | STEPPING | FORMING |          |         | ENDED |
  | CLOSING  | FORMING |          |         | ENDED |
  | ENDED    |         |          |         |       |
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Status(enum.Enum):
    """The state of a worker."""

    AWAY = "not connected: it has never connected, or was lost and may come back"
    CONNECTED = "connected, and has not reported its standing, or is held back (see `visits`)"
    STANDING = "has reported its standing, and waits for a view"
    TRAINING = "a member of the last view"
    DISMISSED = "was told that the training is done, and must leave"
    HUNG = "was abandoned, and its streams were cut"
    RECONNECTED = "was abandoned, and is connected again; no view waits for its standing"
    FINISHED = "has reported that it is done, and left"


class WorkerEvent(enum.Enum):
    """An event of a worker."""

    CONNECT = "its stream begins"
    DISCONNECT = "its stream ends"
    STAND = "it reports its standing"
    INSTALL = "it is a member of the new view"
    DISMISS = "it is told that the training is done"
    ABANDON = "it hangs, and the others continue without it"
    FINISH = "it reports that it is done"


class Phase(enum.Enum):
    """The phase of a training."""

    STARTING = "no worker has reported its standing"
    FORMING = "the workers report their standings, for a new view"
    STEPPING = "the members of the view make steps"
    CLOSING = "some workers are done, and the others were told so"
    ENDED = "there is an outcome"


class TrainingEvent(enum.Enum):
    """An event of a training."""

    ASK = "a worker wants to join, or a member is lost: all members are asked for their standings"
    INSTALL = "there is a new view"
    DISMISS = "too few workers are left for a view, because others are done"
    END = "it is done, or cannot continue"


STATUS_AFTER: Mapping[Status, Mapping[WorkerEvent, Status]] = {
    Status.AWAY: {WorkerEvent.CONNECT: Status.CONNECTED},
    Status.CONNECTED: {
        WorkerEvent.DISCONNECT: Status.AWAY,
        WorkerEvent.STAND: Status.STANDING,
        WorkerEvent.ABANDON: Status.HUNG,
        WorkerEvent.FINISH: Status.FINISHED,
    },
    Status.STANDING: {
        WorkerEvent.DISCONNECT: Status.AWAY,
        WorkerEvent.STAND: Status.STANDING,
        WorkerEvent.INSTALL: Status.TRAINING,
        WorkerEvent.DISMISS: Status.DISMISSED,
        WorkerEvent.FINISH: Status.FINISHED,
    },
    Status.TRAINING: {
        WorkerEvent.DISCONNECT: Status.AWAY,
        WorkerEvent.STAND: Status.STANDING,
        WorkerEvent.ABANDON: Status.HUNG,
        WorkerEvent.FINISH: Status.FINISHED,
    },
    Status.DISMISSED: {
        WorkerEvent.DISCONNECT: Status.AWAY,
        WorkerEvent.STAND: Status.STANDING,
        WorkerEvent.ABANDON: Status.HUNG,
        WorkerEvent.FINISH: Status.FINISHED,
    },
    Status.HUNG: {WorkerEvent.CONNECT: Status.RECONNECTED},
    Status.RECONNECTED: {
        WorkerEvent.DISCONNECT: Status.HUNG,
        WorkerEvent.STAND: Status.STANDING,
        WorkerEvent.FINISH: Status.FINISHED,
    },
    Status.FINISHED: {WorkerEvent.CONNECT: Status.CONNECTED},
}

PHASE_AFTER: Mapping[Phase, Mapping[TrainingEvent, Phase]] = {
    Phase.STARTING: {TrainingEvent.ASK: Phase.FORMING, TrainingEvent.END: Phase.ENDED},
    Phase.FORMING: {
        TrainingEvent.INSTALL: Phase.STEPPING,
        TrainingEvent.DISMISS: Phase.CLOSING,
        TrainingEvent.END: Phase.ENDED,
    },
    Phase.STEPPING: {TrainingEvent.ASK: Phase.FORMING, TrainingEvent.END: Phase.ENDED},
    Phase.CLOSING: {TrainingEvent.ASK: Phase.FORMING, TrainingEvent.END: Phase.ENDED},
    Phase.ENDED: {},
}

HERE = frozenset(Status) - {Status.AWAY, Status.HUNG, Status.FINISHED}
JOINED = frozenset({Status.STANDING, Status.TRAINING, Status.DISMISSED})
