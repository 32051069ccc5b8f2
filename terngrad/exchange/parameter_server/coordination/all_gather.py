"""An all-gather on ps 0: each worker sends a value, and all receive the values of all."""

from __future__ import annotations

from collections.abc import Callable

from terngrad.service.messages import Order, ValueMessage

_MOST_VALUES = 64  # names
_KEPT_ROUNDS = 2
_LONGEST_NAME = 256
_LONGEST_VALUE = 1 << 16  # bytes

Key = tuple[str, int]  # name, round


class AllGather:
    """The workers' values by name and round; not safe for threads."""

    def __init__(self, send: Callable[[int, Order], None]) -> None:
        """Starts without values; `send` sends an order to a worker and must not wait."""
        self._send = send
        self._names: set[str] = set()
        self._given: dict[Key, dict[int, bytes]] = {}
        self._asking: dict[Key, set[int]] = {}
        self._known: dict[Key, frozenset[int]] = {}  # workers whose values were sent

    def give(self, worker: int, value: ValueMessage) -> None:
        """Adds a worker's value and notes that the worker waits for all values.

        After the values have been sent once, no other worker can add one: all workers must get
        values of the same workers.

        Raises:
          ValueError: there are too many names, or a name or a value is too long.
        """
        if len(value.name) > _LONGEST_NAME:
            size = len(value.name)
            raise ValueError(f"value: its name has {size} characters; allowed are {_LONGEST_NAME}")
        if (size := len(value.content)) > _LONGEST_VALUE:
            raise ValueError(
                f"value {value.name}: it has {size} bytes; allowed are {_LONGEST_VALUE}"
            )
        if value.name not in self._names and len(self._names) == _MOST_VALUES:
            raise ValueError(
                f"value {value.name}: there are too many names; allowed are {_MOST_VALUES}"
            )
        newest = max((number for name, number in self._given if name == value.name), default=0)
        if value.round <= newest - _KEPT_ROUNDS:
            return  # repeated on a new stream: no worker waits for it any more
        self._names.add(value.name)
        key = value.name, value.round
        given = self._given.setdefault(key, {})
        if worker in self._known.get(key, (worker,)):
            given[worker] = value.content
        self._asking.setdefault(key, set()).add(worker)
        self._forget(value.name, max(newest, value.round) - _KEPT_ROUNDS)

    def clear(self) -> None:
        """Forgets all values: the next workers may belong to another training."""
        self._names.clear()
        self._given.clear()
        self._asking.clear()
        self._known.clear()

    def forget(self, worker: int) -> None:
        """Drops the values of a worker that failed to join because they did not fit."""
        for key in self._given:
            self._given[key].pop(worker, None)
            self._asking[key].discard(worker)

    def share(self, present: set[int], required: set[int] | None) -> None:
        """Sends values to the connected workers that wait for them.

        Args:
          present: connected workers.
          required: workers whose values must be known before the values are sent for the first
            time; None = workers that are not connected are required, too.
        """
        for key, asking in self._asking.items():
            given = self._given[key]
            is_known = key in self._known or (required is not None and required <= given.keys())
            if not asking or not is_known:
                continue
            self._known.setdefault(key, frozenset(given))
            order = Order()
            order.values.name, order.values.round = key
            order.values.workers.extend(sorted(given))
            order.values.contents.extend(given[worker] for worker in sorted(given))
            for worker in asking & present:
                self._send(worker, order)
            asking.clear()

    def _forget(self, name: str, last: int) -> None:
        """Drops the rounds of a name up to `last`; no worker can ask for them any more."""
        for key in [k for k in self._given if k[0] == name and k[1] <= last]:
            del self._given[key], self._asking[key]
            self._known.pop(key, None)
