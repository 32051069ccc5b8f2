"""What a worker and a training can be, and what may become of them: the tables of ps 0.

A row is a state, a column an event, and a cell the state after it. An empty cell means that the
event does not happen in that state.

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
    """What a worker is to ps 0."""

    AWAY = "not here: it has never connected, or was lost and may come back"
    CONNECTED = "here, and has not said where it stands"
    STANDING = "has said where it stands, and waits for a view"
    TRAINING = "a member of the last view"
    DISMISSED = "was told that the training is done, and has to leave"
    HUNG = "was left behind, and its streams were cut"
    RECONNECTED = "was left behind, and is here again; no view waits for it until it stands"
    FINISHED = "has said that all is done, and left"


class WorkerEvent(enum.Enum):
    """What happens to a worker."""

    CONNECT = "its stream begins"
    DISCONNECT = "its stream ends"
    STAND = "it says where it stands"
    INSTALL = "it is a member of the new view"
    DISMISS = "it is told that the training is done"
    ABANDON = "the others go on without it: it hangs"
    FINISH = "it says that all is done"


class Phase(enum.Enum):
    """What the training does."""

    STARTING = "no worker has said where it stands"
    FORMING = "the workers say where they stand, for a new view"
    STEPPING = "the members of the view make steps"
    CLOSING = "some workers are done, and the others were told so"
    ENDED = "there is an outcome"


class TrainingEvent(enum.Enum):
    """What happens to the training."""

    ASK = "a worker wants to join, or a member is lost: all are asked where they stand"
    INSTALL = "there is a new view"
    DISMISS = "there are not enough workers left for a view, because others are done"
    END = "it is done, or cannot go on"


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
