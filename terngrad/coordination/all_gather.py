"""Values that workers send to the coordinator, which sends all of them to each worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from terngrad.service.messages import LONGEST_NAME, LONGEST_VALUE, Order, ValueMessage

_MAX_NAMES = 128  # of values: a client may repeat as many as half of them
_KEPT_ROUNDS = 2
_KEPT_DROPPED = 4096  # names of which the last round is known after they have made room

Send = Callable[[int, Order], None]


@dataclasses.dataclass
class _Round:
    """The values of a name in a round."""

    given: dict[int, bytes] = dataclasses.field(default_factory=dict)  # by worker
    waiting: set[int] = dataclasses.field(default_factory=set)  # workers that want all values
    sent: frozenset[int] | None = None  # workers whose values were sent; None = none were sent


class AllGather:
    """Each worker sends a value, and all receive the values of all; not safe for threads."""

    def __init__(self, send: Send) -> None:
        """Starts without values; `send` sends an order to a worker and must not wait."""
        self._send = send
        self._rounds: dict[tuple[str, int], _Round] = {}  # by name and round
        self._dropped: dict[str, int] = {}  # the last round of each name that made room for others

    def give(self, worker: int, value: ValueMessage) -> None:
        """Adds a worker's value and notes that the worker waits for all values.

        After the values have been sent once, no other worker can add one: all workers must get
        values of the same workers. If the others are rounds ahead, it gets no values, nor if they
        have used so many names since that this one was dropped.

        Raises:
          ValueError: somebody waits for too many names, or a name or a value is too long.
        """
        rounds = [number for name, number in self._rounds if name == value.name]
        self._check(value)
        past = max(rounds) - _KEPT_ROUNDS if rounds else self._dropped.get(value.name, -1)
        if value.round <= past:
            self._send(worker, _values(value.name, value.round, {}))
            return
        if not rounds:
            self._make_room(value.name)
        for past in [number for number in rounds if number <= value.round - _KEPT_ROUNDS]:
            del self._rounds[value.name, past]
        found = self._rounds.setdefault((value.name, value.round), _Round())
        found.waiting.add(worker)
        if found.sent is None or worker in found.sent:
            found.given[worker] = value.content

    def clear(self) -> None:
        """Forgets all values: the next workers may belong to another training."""
        self._rounds.clear()
        self._dropped.clear()

    def keep_rounds_of(self, workers: Collection[int]) -> None:
        """Drops the rounds in which none of these workers has given a value.

        Other workers made them, perhaps steps ahead of these.
        """
        for key, each in list(self._rounds.items()):
            if each.given.keys().isdisjoint(workers):
                del self._rounds[key]

    def forget(self, worker: int) -> None:
        """Drops the values of a worker that failed to join because they did not fit."""
        for each in self._rounds.values():
            each.given.pop(worker, None)
            each.waiting.discard(worker)

    def share(
        self, connected: set[int], required: set[int] | None, over: int | None = None
    ) -> None:
        """Sends values to the connected workers that wait for them.

        Args:
          connected: connected workers.
          required: workers whose values must be known before the values are sent for the first
            time; None = workers that are not connected are required, too.
          over: round whose values are not sent for the first time any more; None = there is none.
        """
        for (name, number), each in self._rounds.items():
            is_whole = required is not None and required <= each.given.keys() and number != over
            if not each.waiting or (each.sent is None and not is_whole):
                continue
            if each.sent is None:
                each.sent = frozenset(each.given)
            order = _values(name, number, each.given)
            for worker in each.waiting & connected:
                self._send(worker, order)
            each.waiting.clear()

    def _make_room(self, new: str) -> None:
        """Makes room for a name: of those whose values were all sent, drops the one used first.

        No member of a view asks for these again: many later names have been sent since, and the
        values of each were complete when this member had given its own.

        Raises:
          ValueError: there are too many names whose values somebody waits for.
        """
        self._dropped.pop(new, None)
        names = dict.fromkeys(name for name, _ in reversed(self._rounds))  # the last used first
        if len(names) < _MAX_NAMES:
            return
        for name in reversed(names):
            rounds = {key: each for key, each in self._rounds.items() if key[0] == name}
            if all(each.sent is not None and not each.waiting for each in rounds.values()):
                self._dropped[name] = max(number for _, number in rounds)
                if len(self._dropped) > _KEPT_DROPPED:
                    del self._dropped[next(iter(self._dropped))]
                for key in rounds:
                    del self._rounds[key]
                return
        raise ValueError(f"value {new}: there are too many names; allowed are {_MAX_NAMES}")

    def _check(self, value: ValueMessage) -> None:
        what, why = f"value {value.name}", ""
        if (size := len(value.name)) > LONGEST_NAME:
            what, why = "value", f"its name has {size} characters; allowed are {LONGEST_NAME}"
        elif (size := len(value.content)) > LONGEST_VALUE:
            why = f"it has {size} bytes; allowed are {LONGEST_VALUE}"
        if why:
            raise ValueError(f"{what}: {why}")


def _values(name: str, number: int, given: Mapping[int, bytes]) -> Order:
    order = Order()
    order.values.name, order.values.round = name, number
    order.values.workers.extend(sorted(given))
    order.values.contents.extend(given[worker] for worker in sorted(given))
    return order
