"""Values that each worker gives and all see: the facts that they compare."""

from __future__ import annotations

from collections.abc import Callable

from terngrad.exchange.parameter_server.messages import Order, ValueMessage

_MOST_VALUES = 64  # names
_LONGEST_NAME = 256
_LONGEST_VALUE = 1 << 16  # bytes


class Values:
    """What the workers gave, by name; not safe for threads."""

    def __init__(self, send: Callable[[int, Order], None]) -> None:
        """`send` gives a worker an order; must not wait."""
        self._send = send
        self._given: dict[str, dict[int, bytes]] = {}
        self._asking: dict[str, set[int]] = {}
        self._known: set[str] = set()

    def give(self, worker: int, value: ValueMessage) -> None:
        """Takes a worker's value; it will see all of them.

        Raises:
          ValueError: there are too many, or it is too long.
        """
        if len(value.name) > _LONGEST_NAME:
            size = len(value.name)
            raise ValueError(f"a value whose name has {size} characters; allowed {_LONGEST_NAME}")
        if (size := len(value.content)) > _LONGEST_VALUE:
            raise ValueError(f"a value of {size} bytes; allowed are {_LONGEST_VALUE}")
        if value.name not in self._given and len(self._given) == _MOST_VALUES:
            raise ValueError(f"{value.name} is one value too many; allowed are {_MOST_VALUES}")
        self._given.setdefault(value.name, {})[worker] = value.content
        self._asking.setdefault(value.name, set()).add(worker)

    def share(self, present: set[int], *, is_complete: bool) -> None:
        """Shows what is to be seen.

        Args:
          present: workers that must all have given a value before it is shown.
          is_complete: nobody else is waited for.
        """
        for name, asking in self._asking.items():
            given = self._given[name]
            if not asking or (name not in self._known and not is_complete):
                continue
            if name not in self._known and not present <= given.keys():
                continue
            self._known.add(name)
            order = Order()
            order.values.name = name
            order.values.workers.extend(sorted(given))
            order.values.contents.extend(given[worker] for worker in sorted(given))
            for worker in asking & present:
                self._send(worker, order)
            asking.clear()
