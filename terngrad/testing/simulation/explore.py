"""Explores random histories of clusters and prints those that break a law.

    python -m terngrad.testing.simulation.explore --histories=100000 --first=0

Workers and ps run in one process and in virtual time. Streams are queues. A history decides when
messages arrive, and which processes are killed, hang, stop or start again. Its number alone
determines it: `--histories=1 --first=N` repeats it, and `--verbose` prints its events.
docs/development.md says what was explored and found.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable

from terngrad.connect.introduction import COORDINATION, EXCHANGE
from terngrad.testing.simulation.cluster import TIMEOUT_SECS, SimulatedCluster
from terngrad.testing.simulation.own_servers import RETURN_SECS, OwnServersCluster

_SHORT_SECS = (1.0, 1.0, 2.0)
_LONG_SECS = (0.8 * TIMEOUT_SECS, 1.2 * TIMEOUT_SECS, 11 * TIMEOUT_SECS)
_MAX_FAULTS = 16


class History:
    """The events of a cluster, drawn from a number.

    Attributes:
      events: the events so far, one line each.
    """

    def __init__(self, number: int) -> None:
        """Starts a cluster of up to three workers and two ps."""
        self._random = random.Random(number)
        pick = self._random.randint
        self._workers, self._servers = self._random.choice((1, 2, 2, 3, 3, 3)), pick(1, 2)
        needed = max(1, self._workers - self._random.choice((0, 0, 1, 2)))
        elastic, late = self._random.random() < 0.5, pick(0, 8)
        rules = {"return_secs": RETURN_SECS} if elastic else {}
        self._cluster = SimulatedCluster(
            self._workers, self._servers, needed, elastic, number, **rules
        )
        for ps in range(self._servers):
            self._cluster.start_ps(ps)
        for worker in range(self._workers):
            if worker != late:
                self._cluster.start_worker(worker)
        setting = f"{self._workers} workers, {needed} needed, {self._servers} ps, elastic={elastic}"
        self.events = [setting]
        self._actions, self._frequent, self._busy = _ACTIONS, _FREQUENT, 1

    def run(self) -> None:
        """Lets events happen and then ends all faults.

        Raises:
          BrokenLawError: a law does not hold.
          Exception: the tested code failed.
        """
        self._do("deliver", self._busy * self._random.choice((0, 40, 100, 160)))
        for _ in range(self._random.randrange(_MAX_FAULTS)):
            name = self._random.choice([*self._actions, *self._frequent])
            self._do(name, *(draw(self) for draw in self._actions[name]))
        self.events.append("settle")
        draw = self._random.random
        self._cluster.settle(restart=draw() < 0.8, restart_ps=draw() < 0.7)

    def worker(self) -> int:
        """Draws a worker."""
        return self._random.randrange(self._workers)

    def ps(self) -> int:
        """Draws a ps."""
        return self._random.randrange(self._servers)

    def kept(self) -> int:
        """Draws how many messages still arrive when a stream breaks."""
        return self._random.choice((0, 0, 1, 2, 5))

    def purpose(self) -> str:
        """Draws one of a worker's two streams."""
        return self._random.choice((COORDINATION, EXCHANGE))

    def has_saved(self) -> bool:
        """Draws whether a killed worker has just saved a checkpoint."""
        return self._random.random() < 0.5

    def count(self) -> int:
        """Draws how many events happen before the next fault."""
        return self._busy * self._random.choice((1, 2, 5, 10, 20, 40))

    def short_secs(self) -> float:
        """Draws a time in which no process counts as lost."""
        return self._random.choice(_SHORT_SECS)

    def long_secs(self) -> float:
        """Draws a time in which most faults are noticed."""
        return self._random.choice(_LONG_SECS)

    def _do(self, name: str, *arguments: int | float | str | bool | tuple[int, ...]) -> None:
        self.events.append(f"{self._cluster.clock():g} s: {name} {arguments}")
        getattr(self._cluster, name.partition(" ")[0])(*arguments)


_Draw = Callable[[History], int | float | str | bool | tuple[int, ...]]
_ACTIONS: dict[str, tuple[_Draw, ...]] = {
    "deliver": (History.count,),
    "run": (History.short_secs,),
    "run long": (History.long_secs,),
    "start_worker": (History.worker,),
    "kill_worker": (History.worker, History.kept, History.has_saved),
    "hang": (History.worker,),
    "stop": (History.worker,),
    "wake": (History.worker,),
    "start_ps": (History.ps,),
    "kill_ps": (History.ps, History.kept),
    "stop_ps": (History.ps,),
    "wake_ps": (History.ps,),
    "stick": (History.worker, History.ps, History.purpose),
    "release": (),
    "cut": (History.worker, History.ps, History.purpose, History.kept, History.kept),
}
_FREQUENT = [*["deliver"] * 6, "run", *["stick"] * 2, *["cut"] * 2]
_PS = ("start_ps", "kill_ps", "stop_ps", "wake_ps")
_OWN_ACTIONS = {name: draws for name, draws in _ACTIONS.items() if name not in _PS} | {
    "freeze": (History.worker,),
    "thaw": (History.worker,),
    "partition": (lambda history: history.some(),),
    "kill_coordinator": (History.kept, History.has_saved),
}
_OWN_FREQUENT = [*_FREQUENT, "run", *["start_worker"] * 2, "kill_coordinator", *["partition"] * 2]


class OwnServersHistory(History):
    """A history of an all-reduce that goes on, drawn from a number."""

    def __init__(self, number: int) -> None:
        """Starts a cluster of two to five workers; those of odd numbers have a mesh."""
        self._random = random.Random(number)
        pick = self._random.randint
        self._workers = self._servers = self._random.choice((2, 3, 3, 4, 5))
        needed, late = self._workers, pick(0, 12)
        self._cluster = OwnServersCluster(self._workers, needed, number, has_mesh=bool(number % 2))
        for worker in range(self._workers):
            if worker != late:
                self._cluster.start_worker(worker)
        self.events = [f"{self._workers} workers with a ps each, mesh={bool(number % 2)}"]
        self._actions, self._frequent = _OWN_ACTIONS, _OWN_FREQUENT
        self._busy = 3  # each worker has a stream to each other
        self._do("run", 1.0)  # in which links are opened

    def some(self) -> tuple[int, ...]:
        """Draws some of the workers."""
        return tuple(w for w in range(self._workers) if self._random.random() < 0.5)


def main(arguments: list[str]) -> int:
    """Explores histories; returns how many broke a law."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--histories", type=int, default=1000, help="number of histories")
    parser.add_argument("--first", type=int, default=0, help="number that names the first history")
    parser.add_argument(
        "--own_servers", action="store_true", help="histories of an all-reduce that goes on"
    )
    parser.add_argument("--verbose", action="store_true", help="print all events")
    chosen = parser.parse_args(arguments)
    began, broken = time.monotonic(), 0
    for number in range(chosen.first, chosen.first + chosen.histories):
        history = (OwnServersHistory if chosen.own_servers else History)(number)
        try:
            history.run()
        except Exception as error:  # also errors of the tested code
            broken += 1
            print(f"history {number}: {type(error).__name__}: {error}", flush=True)
        if chosen.verbose:
            print("\n".join(history.events))
    secs = time.monotonic() - began
    print(f"{chosen.histories} histories from {chosen.first} on, {broken} broken, {secs:.0f} s.")
    return broken


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
