"""The Optuna study of a sweep: which trial is next, and the outcomes of the others.

All trials of a grid or of a random search are queued when the study is made, so that several sweeps
share them without asking each other. If that was interrupted, the next sweep queues the rest. A
trial that has to run again is noted as failed, and queued once more with the same values. The two
share a folder, so the training goes on from its checkpoint. User attributes of the trials:

    point      what the trial tries: its index in the queue, or the number of the first such trial
    attempt    0, then 1 more each time that the point is queued again
    losses     how many attempts ended because a program was killed or a machine was lost
    outcome    how it ended; missing if its sweep was lost
    duplicate  set if another trial tries the same values
    alive      last heartbeat of the process that runs it

Studies from before 2026-11-29 have other names for some; see `_FORMER_NAMES`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState

from inception.flags.table import refuse
from inception.sweeping.messages import Evaluation, Outcome, TrialEnd
from inception.sweeping.plan import Plan, point_of
from inception.sweeping.space import Point
from terngrad.launcher.state import start_mark

_LOST_SECS = 120.0  # a sweep on another machine that was silent for so long is lost
BEAT_SECS = 20.0  # between two heartbeats

_LINE = b'{"op_code":'  # so each line of a journal begins
_LOCK_SECS = 30.0  # the lock of a journal is held for less, if its sweep lives
_LOCK_POLL_SECS = 0.5
_DATABASE_SECS = 60.0  # how long a sweep waits for a locked SQLite database

_Heartbeat = Mapping[str, Any]
_PLAN = "plan"
_FORMER_NAMES = {"attempt": "life", "losses": "deaths", "duplicate": "surplus"}
_OPEN = (TrialState.WAITING, TrialState.RUNNING)


def heartbeat() -> _Heartbeat:
    """Returns a heartbeat of this process."""
    pid = os.getpid()
    return {"time": time.time(), "host": socket.gethostname(), "pid": pid, "birth": start_mark(pid)}


def is_alive(last: _Heartbeat) -> bool:
    """Whether the process that gave a heartbeat still lives."""
    if last["host"] == socket.gethostname():
        return start_mark(last["pid"]) == last["birth"]
    return time.time() - last["time"] < _LOST_SECS


@dataclasses.dataclass(frozen=True)
class RunningTrial:
    """A trial that this sweep runs.

    Attributes:
      trial: Optuna's trial.
      point: the values to try, as texts.
      folder: its folder, within that of the sweep.
    """

    trial: optuna.Trial
    point: Point
    folder: str


class _JournalLock(JournalFileSymlinkLock):
    """Optuna's lock of a journal. Whoever takes it removes a line that was cut off.

    A full disk or a crash cuts a line off. The next one would be joined to it, and no sweep could
    read the journal again.
    """

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self._file = file
        # A link within the folder, which is right on each machine, wherever it mounts that.
        self._lock_target_file = os.path.basename(file)

    def acquire(self) -> bool:
        taken = super().acquire()
        try:
            _remove_cut_line(self._file)
        except BaseException:
            self.release()
            raise
        return taken


class _Journal(JournalFileBackend):
    """Optuna's journal file, mended when it is opened. Errors of writing name the file."""

    def __init__(self, file: str) -> None:
        self._file, lock = file, _JournalLock(file)
        super().__init__(file, lock)
        with open(file, "rb") as lines:
            if lines.read(len(_LINE)) not in (b"", _LINE):
                raise ValueError("its first line is none of a journal")
        _remove_dangling_lock(f"{file}.lock")
        lock.acquire()
        lock.release()

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        try:
            super().append_logs(logs)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._file) from None


def _remove_cut_line(journal: str) -> None:
    """Removes the last line of a journal if it has no end."""
    with open(journal, "rb+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        if file.read() in (b"", b"\n"):
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _remove_dangling_lock(lock: str) -> None:
    """Removes the lock of a killed sweep of an earlier version, if it is a link to no file.

    Such a lock named the journal by its path on another machine or from another folder. Optuna
    knows no age of it, and would wait forever. One that stays the same for long is nobody's.
    """
    seen, since = 0, time.monotonic()
    with contextlib.suppress(FileNotFoundError):
        while os.path.islink(lock) and not os.path.exists(lock):
            if (made := os.lstat(lock).st_mtime_ns) != seen:
                seen, since = made, time.monotonic()
            elif time.monotonic() - since > _LOCK_SECS:
                os.unlink(lock)
            time.sleep(_LOCK_POLL_SECS)


def open_storage(place: str) -> BaseStorage:
    """Opens a file, which becomes an Optuna journal, or a database by its URL.

    Raises:
      ValueError: that is not possible.
    """
    is_file = "://" not in place
    # SQLite's own wait for a lock, 5 s, is less than a copy or a backup may take.
    waits = place.startswith("sqlite") and "timeout=" not in place
    settings = {"connect_args": {"timeout": _DATABASE_SECS}} if waits else None
    try:
        if is_file:
            return JournalStorage(_Journal(os.path.abspath(place)))
        return RDBStorage(place, settings)
    except OSError as error:
        raise refuse("storage", place, f"cannot be opened: {error.strerror}") from error
    except Exception as error:  # of SQLAlchemy, its drivers, or Optuna, which checks no journal
        reason = str(error).strip().splitlines()[0]
        why = "is no Optuna journal, or a damaged one" if is_file else "cannot be opened"
        raise refuse("storage", place, f"{why}: {reason}") from error


def _count(trial: FrozenTrial | optuna.Trial, name: str) -> int:
    """Returns an attribute of a trial, of whichever name; 0 if it has none."""
    attributes = trial.user_attrs
    return attributes.get(name, attributes.get(_FORMER_NAMES[name], 0))


def _identity(trial: FrozenTrial | optuna.Trial) -> tuple[str, int]:
    """Returns point and attempt of a trial, also before they are noted."""
    return trial.user_attrs.get("point", f"trial {trial.number}"), _count(trial, "attempt")


def _was_cut_off(trial: FrozenTrial) -> bool:
    """Whether a trial ended, but its sweep was lost before it could queue it again."""
    if trial.state is not TrialState.FAIL or _count(trial, "duplicate"):
        return False
    return trial.user_attrs.get("outcome", Outcome.STOPPED) == Outcome.STOPPED


class Study:
    """A study that several sweeps may share. Its methods may be called from any thread.

    Attributes:
      optuna: the study as Optuna knows it.
    """

    def __init__(self, storage: BaseStorage, name: str, plan: Plan, folder: str = "") -> None:
        """Opens the study, or makes it; queues its trials, unless another sweep has.

        Args:
          storage: holds the study.
          name: of the study.
          plan: its trials.
          folder: of its trials, within the sweep's folder. Trials that have one already keep it.

        Raises:
          ValueError: the study has another plan.
        """
        self._plan, self._folder = plan, Path(folder)
        self._lock = threading.Lock()
        self._mine: dict[int, optuna.Trial] = {}
        self._without_heartbeat: dict[int, float] = {}  # when this sweep first saw such a trial
        self.optuna = optuna.create_study(
            storage=storage,
            study_name=name,
            load_if_exists=True,
            directions=plan.directions,
            sampler=plan.sampler(),
            pruner=plan.make_pruner(),
        )
        known = self.optuna.user_attrs.get(_PLAN)
        if known is None:  # noted first: a sweep with another plan must not go on with these trials
            self.optuna.set_user_attr(_PLAN, plan.description)
        else:
            plan.check_same(known, name)
        found = {trial.user_attrs.get("point") for trial in self._trials()}
        for index, params in enumerate(plan.queued()):
            if str(index) not in found:
                self.optuna.enqueue_trial(params, user_attrs={"point": str(index), "attempt": 0})

    def retry_failed(self) -> None:
        """Queues the points again whose last attempt failed; each continues in its folder."""
        with self._lock:
            for trial in self.results():
                if trial.state is TrialState.FAIL:
                    self._queue_again(trial, losses=0)

    def next(self) -> RunningTrial | None:
        """Returns a trial to run, or None if there is none to start now."""
        with self._lock:
            self._recover()
            while self._may_ask():
                if running := self._ask():
                    return running
        return None

    def _may_ask(self) -> bool:
        trials = self._trials()
        if any(trial.state is TrialState.WAITING for trial in trials):
            return True
        return len({_identity(trial)[0] for trial in trials}) < self._plan.total

    def _ask(self) -> RunningTrial | None:
        trial = self.optuna.ask(self._plan.distributions)
        number = trial.number
        trial.set_user_attr("alive", heartbeat())
        if "point" not in trial.user_attrs:
            trial.set_user_attr("attempt", 0)
            trial.set_user_attr("point", _identity(trial)[0])
        if self._is_duplicate(trial):
            trial.set_user_attr("duplicate", True)
            self.optuna.tell(number, state=TrialState.FAIL)
            return None
        if "folder" not in trial.user_attrs:
            trial.set_user_attr("folder", str(self._folder / f"trial_{number:04d}"))
        self._mine[number] = trial
        return RunningTrial(trial, point_of(trial.params), trial.user_attrs["folder"])

    def _is_duplicate(self, trial: optuna.Trial) -> bool:
        """Whether trials that were asked for earlier make this one unnecessary."""
        earlier = [_identity(t) for t in self._trials() if t.number < trial.number]
        point, attempt = _identity(trial)
        if (point, attempt) in earlier:
            return True
        return attempt == 0 and len({point for point, _ in earlier}) >= self._plan.total

    def _recover(self) -> None:
        """Queues the trials of lost sweeps again."""
        followed = {_identity(trial) for trial in self._trials()}
        for trial in self._trials():
            point, attempt = _identity(trial)
            if trial.number in self._mine or (point, attempt + 1) in followed:
                continue
            is_open = trial.state is TrialState.RUNNING or _was_cut_off(trial)
            if is_open and not self._is_running(trial):
                self._queue_again(trial, _count(trial, "losses"))

    def _is_running(self, trial: FrozenTrial) -> bool:
        """Whether the process that asked for an open trial still lives."""
        if seen := trial.user_attrs.get("alive"):
            return is_alive(seen)
        # It ended before its first heartbeat, or that is on its way. The trial's own start does not
        # say which: Optuna notes it in the local time of another machine.
        since = self._without_heartbeat.setdefault(trial.number, time.monotonic())
        return time.monotonic() - since < _LOST_SECS

    def _queue_again(self, trial: FrozenTrial, losses: int) -> None:
        """Ends a trial, unless it has ended, and queues its point again.

        If two sweeps do the same, the second trial is a duplicate.
        """
        attributes = trial.user_attrs
        kept = {"point": _identity(trial)[0]}
        kept |= {"folder": attributes["folder"]} if "folder" in attributes else {}
        counts = {"attempt": _count(trial, "attempt") + 1, "losses": losses}
        with contextlib.suppress(ValueError, UpdateFinishedTrialError):
            self.optuna.tell(trial.number, state=TrialState.FAIL)
        self.optuna.enqueue_trial(trial.params, user_attrs=kept | counts)

    def is_over(self) -> bool:
        """Whether all trials have ended, also those of other sweeps."""
        with self._lock:
            return not self._may_ask() and not any(t.state in _OPEN for t in self._trials())

    def report(self, running: RunningTrial, evaluation: Evaluation) -> bool:
        """Notes an intermediate evaluation; returns whether the trial is to be pruned."""
        if not self._plan.pruner:
            return False
        with self._lock:
            try:
                running.trial.report(evaluation.precision, evaluation.step)
            except UpdateFinishedTrialError:
                return True  # another sweep has taken it over and waits for its end
            return running.trial.should_prune()

    def end(self, running: RunningTrial, end: TrialEnd, pruned: bool, retries: int) -> bool | None:
        """Notes how a trial ended; returns whether it is queued again.

        A trial that was stopped is queued again unless it was pruned, and one that died up to
        `retries` times. None: this sweep was silent, and another one has taken the trial over.
        """
        if end.outcome is Outcome.DONE and (missing := self._missing(end)):
            reason = f"the programs printed no {missing}; see train.log and eval.log"
            end = dataclasses.replace(end, outcome=Outcome.FAILED, reason=reason)
        outcome = "pruned" if pruned and end.outcome is Outcome.STOPPED else end.outcome.value
        with self._lock:
            trial = running.trial
            del self._mine[trial.number]
            with contextlib.suppress(UpdateFinishedTrialError):
                return self._ended(trial, outcome, end, retries)
            return None

    def _ended(self, trial: optuna.Trial, outcome: str, end: TrialEnd, retries: int) -> bool:
        """Notes how a trial of this sweep ended; returns whether it is queued again."""
        trial.set_user_attr("outcome", outcome)
        for name in ("reason", "seconds", "bytes_sent"):
            trial.set_user_attr(name, getattr(end, name))
        trial.set_user_attr("evaluation", end.last and dataclasses.asdict(end.last))
        died = outcome in (Outcome.DIED, Outcome.LOST)
        losses = _count(trial, "losses") + died
        if outcome == Outcome.STOPPED or (died and losses <= retries):
            self._queue_again(self.trial(trial.number), losses)
            return True
        if outcome == Outcome.DONE:
            self.optuna.tell(trial, list(self._objectives(end).values()))
        else:
            state = TrialState.PRUNED if outcome == "pruned" else TrialState.FAIL
            self.optuna.tell(trial, state=state)
        return False

    def _objectives(self, end: TrialEnd) -> dict[str, float | None]:
        """Returns the objectives of a finished trial; None for one that it did not report."""
        found = {
            "precision": end.last and end.last.precision,
            "bytes": end.bytes_sent,
            "seconds": end.seconds,
        }
        return {name: found[name] for name in self._plan.objectives}

    def _missing(self, end: TrialEnd) -> str:
        """Returns which objectives a finished trial did not report."""
        return " and no ".join(name for name, v in self._objectives(end).items() if v is None)

    def beat(self) -> None:
        """Notes that the trials of this sweep run; to be called every BEAT_SECS.

        Without effect if the storage fails just now: the next heartbeat may be in time.
        """
        with self._lock, contextlib.suppress(StorageInternalError, OSError):
            for trial in self._mine.values():
                with contextlib.suppress(UpdateFinishedTrialError):  # `end` will say so
                    trial.set_user_attr("alive", heartbeat())

    def results(self) -> list[FrozenTrial]:
        """Returns the trials that count: the last attempt of each point."""
        last: dict[str, FrozenTrial] = {}
        for trial in self._trials():
            point, attempt = _identity(trial)
            if "point" not in trial.user_attrs or _count(trial, "duplicate"):
                continue
            if point not in last or attempt > _identity(last[point])[1]:
                last[point] = trial
        return list(last.values())

    def trial(self, number: int) -> FrozenTrial:
        """Returns a trial by its number."""
        return self._trials()[number]

    def _trials(self) -> list[FrozenTrial]:
        return self.optuna.get_trials(deepcopy=False)
