"""Values that workers send to the coordinator, which sends all of them to each worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from terngrad.service.messages import LONGEST_NAME, LONGEST_VALUE, Order, ValueMessage

_MAX_NAMES = 64  # of values
_KEPT_ROUNDS = 2

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

    def give(self, worker: int, value: ValueMessage) -> None:
        """Adds a worker's value and notes that the worker waits for all values.

        After the values have been sent once, no other worker can add one: all workers must get
        values of the same workers. If the others are rounds ahead, it gets no values.

        Raises:
          ValueError: there are too many names, or a name or a value is too long.
        """
        rounds = [number for name, number in self._rounds if name == value.name]
        self._check(value, is_new=not rounds)
        newest = max(rounds, default=0)
        if value.round <= newest - _KEPT_ROUNDS:
            self._send(worker, _values(value.name, value.round, {}))
            return
        for past in [number for number in rounds if number <= value.round - _KEPT_ROUNDS]:
            del self._rounds[value.name, past]
        found = self._rounds.setdefault((value.name, value.round), _Round())
        found.waiting.add(worker)
        if found.sent is None or worker in found.sent:
            found.given[worker] = value.content

    def clear(self) -> None:
        """Forgets all values: the next workers may belong to another training."""
        self._rounds.clear()

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

    def share(self, connected: set[int], required: set[int] | None) -> None:
        """Sends values to the connected workers that wait for them.

        Args:
          connected: connected workers.
          required: workers whose values must be known before the values are sent for the first
            time; None = workers that are not connected are required, too.
        """
        for (name, number), each in self._rounds.items():
            is_whole = required is not None and required <= each.given.keys()
            if not each.waiting or (each.sent is None and not is_whole):
                continue
            if each.sent is None:
                each.sent = frozenset(each.given)
            order = _values(name, number, each.given)
            for worker in each.waiting & connected:
                self._send(worker, order)
            each.waiting.clear()

    def _check(self, value: ValueMessage, *, is_new: bool) -> None:
        what, why = f"value {value.name}", ""
        if (size := len(value.name)) > LONGEST_NAME:
            what, why = "value", f"its name has {size} characters; allowed are {LONGEST_NAME}"
        elif (size := len(value.content)) > LONGEST_VALUE:
            why = f"it has {size} bytes; allowed are {LONGEST_VALUE}"
        elif is_new and len({name for name, _ in self._rounds}) == _MAX_NAMES:
            why = f"there are too many names; allowed are {_MAX_NAMES}"
        if why:
            raise ValueError(f"{what}: {why}")


def _values(name: str, number: int, given: Mapping[int, bytes]) -> Order:
    order = Order()
    order.values.name, order.values.round = name, number
    order.values.workers.extend(sorted(given))
    order.values.contents.extend(given[worker] for worker in sorted(given))
    return order
