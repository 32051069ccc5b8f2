"""The tasks of worker 0: it begins or continues a run, fetches its state, and ends it.

A run begins when the chief sends a state to the ps. While the run lasts, a file beside the chief's
checkpoints names it. If the chief restarts during a run with the same settings, it continues with
the state of the ps, unless its checkpoint is newer. Otherwise it begins another run from its
checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from terngrad.asynchronous.client import Client
from terngrad.asynchronous.plan import FORMER_CONFIGURATION, Plan, state_bytes
from terngrad.asynchronous.row import Shard, make_row_layout
from terngrad.cluster.membership import difference
from terngrad.files import publish
from terngrad.layout import Layout

_NAME = ".asynchronous_run"
_LAST_UPDATES_SECS = 5.0  # for pushes to the other ps after ps 0 has all updates


class RunFile:
    """The name of the run in progress, and the configuration that all its workers share."""

    def __init__(self, train_dir: str) -> None:
        """Places the file in the folder of the checkpoints; "" = there is no file."""
        self._path = os.path.join(train_dir, _NAME) if train_dir else ""

    def read(self) -> tuple[str, dict[str, str]]:
        """Returns the run and its configuration; an empty name without a valid file."""
        try:
            with open(self._path, encoding="utf-8") as file:
                values = json.load(file)
            configuration = values.get("configuration", values.get(FORMER_CONFIGURATION))
            return str(values["run"]), dict(configuration)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return "", {}

    def write(self, run: str, configuration: Mapping[str, str]) -> None:
        """Writes the file of a run."""
        if not self._path:
            return
        temporary = f"{self._path}.saving"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"run": run, "configuration": dict(configuration)}, file)
        publish(temporary, self._path)

    def remove(self) -> None:
        """Removes the file after the run has ended and was saved."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._path)


@dataclasses.dataclass(frozen=True)
class States:
    """Packs variables into the state of each ps, and unpacks them.

    Attributes:
      variables: variables by "GROUP/NAME", as in checkpoints.
      statistics: the moving statistics.
      layout: layout of the trained variables.
      groups: groups in the order of a ps' state, see `state_groups`.
      shards: shard of each ps.
    """

    variables: Mapping[str, tf.Variable]
    statistics: Sequence[tf.Variable]
    layout: Layout
    groups: Sequence[str]
    shards: Sequence[Shard]

    def pack(self) -> list[bytes]:
        """Returns the state of each ps."""
        row_layout, rows = make_row_layout(self.layout), []
        for group in self.groups:
            row = np.zeros(row_layout.size, np.float32)
            for segment in row_layout.segments:
                value = self._variable(group, segment.variable).numpy()
                row[segment.start : segment.start + segment.size] = value.reshape(-1)
            rows.append(row)
        flat = [np.float32(v.numpy()).reshape(-1) for v in self.statistics]
        found = []
        for shard in self.shards:
            parts = [row[shard.first : shard.first + shard.size] for row in rows]
            parts += flat if shard.statistics else []
            found.append(b"".join(part.tobytes() for part in parts))
        return found

    def unpack(self, contents: Sequence[bytes | bytearray]) -> None:
        """Assigns the state of each ps to the variables."""
        values = [np.frombuffer(content, "<f4") for content in contents]
        row_layout = make_row_layout(self.layout)
        for i, group in enumerate(self.groups):
            pairs = zip(values, self.shards, strict=True)
            row = np.concatenate([v[i * s.size : (i + 1) * s.size] for v, s in pairs])
            for segment in row_layout.segments:
                variable = self._variable(group, segment.variable)
                part = row[segment.start : segment.start + segment.size]
                variable.assign(part.reshape(variable.shape))
        rest = values[0][len(self.groups) * self.shards[0].size :]
        for variable in self.statistics:
            size = variable.shape.num_elements()
            value, rest = rest[:size], rest[size:]
            variable.assign(tf.cast(tf.reshape(value, variable.shape), variable.dtype))

    def _variable(self, group: str, index: int) -> tf.Variable:
        return self.variables[f"{group}/{self.layout.names[index]}"]


class Chief:
    """Worker 0 of a run.

    Attributes:
      digest: of the state that was last sent to the ps or fetched from them; empty before. It also
        changes where updates reach other ps than ps 0, whose step is that of the run.
    """

    def __init__(
        self,
        client: Client,
        plan: Plan,
        states: States,
        run_file: RunFile,
        log: Callable[[str], None],
    ) -> None:
        """Sends nothing yet.

        Args:
          client: client of this worker.
          plan: plan of the run that it would begin.
          states: converts between its variables and the states of the ps.
          run_file: names the current run, beside its checkpoints.
          log: called with lines for the log.
        """
        self._client, self._plan, self._states = client, plan, states
        self._run_file, self._log = run_file, log
        self.digest = b""

    def begin_or_resume(self, step: int, checkpoint: str | None) -> None:
        """Sends the variables to the ps, unless the ps hold a newer state of the same run.

        Args:
          step: step of the variables, which is that of ps 0.
          checkpoint: path from which they were loaded, if any.

        Raises:
          MembershipError: a ps cannot be reached, or refuses this worker.
        """
        run, configuration = self._run_file.read()
        statuses = self._client.enter(run)
        reached = statuses[0].version  # the others may have lost updates
        if run and all(status.run == run for status in statuses) and reached >= step:
            changed = difference(
                self._plan.configuration, configuration, "this worker", "the run before"
            )
            if not changed:
                self._log(f"The run continues with the state of the ps at step {reached}.")
                return
            self._log(f"The run of the ps, at step {reached}, is not continued: {changed}.")
        packed = self._states.pack()
        self.digest = _digest(step, packed)
        # Written first, so that a restarted chief finds this run or none, but no earlier run.
        self._run_file.write(self._plan.run, self._plan.configuration)
        self._client.begin(self._plan, packed, step)
        self._log(f"A run begins at step {step}{f', {checkpoint}' if checkpoint else ''}.")

    def fetch(self, *, last: bool = False) -> int:
        """Loads the state of the ps into the variables; returns its step. See `Client.fetch`."""
        sizes = [state_bytes(self._plan, shard) for shard in self._states.shards]
        step, contents = self._client.fetch(sizes, last=last)
        self._states.unpack(contents)
        self.digest = _digest(step, contents)
        return step

    def await_last_updates(self) -> None:
        """Waits up to 5 s until all ps, not only ps 0, have the updates of a finished run."""
        self._client.await_updates(self._plan.max_steps, _LAST_UPDATES_SECS)

    def end(self, *, done: bool, stopped: bool) -> None:
        """Ends the run after its last state was saved: it is done, or this worker was stopped."""
        # If a ps does not know, it continues the run, and a restarted chief must continue it, too.
        if self._client.leave(done=done, stop=stopped, saved=True, waits=True):
            self._run_file.remove()


def _digest(step: int, contents: Sequence[bytes | bytearray]) -> bytes:
    digest = hashlib.sha256(str(step).encode())
    for content in contents:
        digest.update(content)
    return digest.digest()
