"""What worker 0 does for a run: begins it, or goes on with it; fetches its state; ends it.

A run lasts from its beginning, when the chief gives the ps its state, to its end. The chief notes
the run's name beside its checkpoints meanwhile. If the chief is started again during a run, with
the same settings, it goes on with what the ps hold, unless its checkpoint is newer; else it begins
another run from its checkpoint, whatever the ps hold.
"""

from __future__ import annotations

from collections.abc import Callable

from terngrad.asynchronous.client import Client
from terngrad.asynchronous.plan import Plan
from terngrad.asynchronous.run_file import RunFile
from terngrad.asynchronous.states import States
from terngrad.asynchronous.updates import state_bytes
from terngrad.cluster.membership import difference

_LAST_UPDATES_SECS = 5.0  # for pushes that are on their way while ps 0 already has its updates


class Chief:
    """Worker 0 of a run."""

    def __init__(
        self,
        client: Client,
        plan: Plan,
        states: States,
        run_file: RunFile,
        tell: Callable[[str], None],
    ) -> None:
        """Nothing is sent yet.

        Args:
          client: of this worker.
          plan: of the run that it would begin.
          states: between its variables and what the ps hold.
          run_file: beside its checkpoints.
          tell: called with lines for the log.
        """
        self._client, self._plan, self._states = client, plan, states
        self._run_file, self._tell = run_file, tell

    def begin_or_go_on(self, step: int, checkpoint: str | None) -> None:
        """Gives the variables to the ps, unless these hold a newer state of the same run.

        Args:
          step: of the variables.
          checkpoint: from which they were read, if any.

        Raises:
          MembershipError: a ps cannot be reached, or refuses this worker.
        """
        run, facts = self._run_file.read()
        statuses = self._client.enter(run)
        held = min(status.version for status in statuses)
        if run and all(status.run == run for status in statuses) and held >= step:
            changed = difference(self._plan.facts, facts, "this worker", "the run before")
            if not changed:
                self._tell(f"The run goes on with what the ps hold, step {held}.")
                return
            self._tell(f"What the ps hold, step {held}, is left: {changed}.")
        packed = self._states.pack()
        # Noted before it begins: a chief that is started again then finds this run, or none, but
        # no run before it.
        self._run_file.write(self._plan.run, self._plan.facts)
        self._client.begin(self._plan, packed, step)
        self._tell(f"A run begins at step {step}{f', {checkpoint}' if checkpoint else ''}.")

    def fetch(self, *, last: bool = False) -> int:
        """Assigns what the ps hold to the variables; returns its step. For `last` see `Client`."""
        sizes = [state_bytes(self._plan, shard) for shard in self._states.shards]
        step, contents = self._client.fetch(sizes, last=last)
        self._states.unpack(contents)
        return step

    def await_last_updates(self) -> None:
        """Waits a little until all ps, not only ps 0, have the updates of a finished run."""
        self._client.await_updates(self._plan.max_steps, _LAST_UPDATES_SECS)

    def end(self, *, done: bool, stopped: bool) -> None:
        """Ends the run, whose last state was saved: it is done, or this worker was stopped."""
        # A ps that did not hear it goes on with the run, and so does a chief started again here.
        if self._client.bye(done=done, stop=stopped, saved=True, looks=True):
            self._run_file.remove()
