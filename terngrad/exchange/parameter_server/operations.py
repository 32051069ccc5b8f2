"""Joint operations of the workers: their sizes, their pieces, and the ps of each piece."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterator, Sequence

from terngrad.layout import MAX_NODES, MAX_SUM
from terngrad.planes import WORD_BYTES, plane_count, share_of
from terngrad.service.messages import PIECE_BYTES, OperationMessage

_SMALL_PIECE_BYTES = 1 << 18
_PIECES_TO_OVERLAP = 4  # at least, unless they are small: results return while others are pushed
_LONGEST_NAME = 256
_MAX_ITEMS = 1 << 33  # 8 billion: more than any net has parameters


class InvalidOperationError(ValueError):
    """The message says what is wrong with an operation."""


class Kind(enum.IntEnum):
    """What an operation computes; see `terngrad/service/messages.py`."""

    MAX = 1
    CODES = 2
    FLOATS = 3
    HALVES = 4
    # The halves of CODES where the owners of shares code the sums again.
    SCATTER_CODES = 5
    GATHER_CODES = 6


_OF_CODES = (Kind.CODES, Kind.SCATTER_CODES, Kind.GATHER_CODES)
_OF_SHARES = (Kind.SCATTER_CODES, Kind.GATHER_CODES)


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation that the workers do together at each step.

    Attributes:
      name: the same on all workers.
      kind: what it computes.
      items: floats, or groups of 32 codes, of each worker.
      local_nodes: nodes of each worker; a worker pushes sums of codes over them.
      workers: number of workers.
      max_code: largest magnitude of a node's code; 1 if there are no codes.
    """

    name: str
    kind: Kind
    items: int
    local_nodes: int
    workers: int
    max_code: int = 1

    def __post_init__(self) -> None:
        """Raises InvalidOperationError if no ps could compute this."""
        if not 0 < len(self.name) <= _LONGEST_NAME:
            allowed = f"allowed are 1 to {_LONGEST_NAME}"
            raise InvalidOperationError(f"a name of {len(self.name)} characters; {allowed}")
        if not 1 <= self.local_nodes * self.workers <= MAX_NODES:
            nodes = self.local_nodes * self.workers
            raise InvalidOperationError(f"{nodes} nodes; allowed are 1 to {MAX_NODES}")
        if not 1 <= self.max_code <= MAX_SUM // self.nodes:
            allowed = f"allowed are 1 to {MAX_SUM // self.nodes}"
            raise InvalidOperationError(f"max_code of {self.name} is {self.max_code}; {allowed}")
        if self.items > _MAX_ITEMS:
            allowed = f"allowed are up to {_MAX_ITEMS}"
            raise InvalidOperationError(f"{self.name} has {self.items} items; {allowed}")

    @classmethod
    def read(cls, message: OperationMessage, workers: int) -> Operation:
        """Reads an operation from its message; InvalidOperationError if no ps could compute it."""
        try:
            kind = Kind(message.kind)
        except ValueError:
            allowed = ", ".join(f"{k} ({k.name})" for k in Kind)
            raise InvalidOperationError(f"kind is {message.kind}; allowed are {allowed}") from None
        max_code = message.max_code or 1
        return cls(message.name, kind, message.items, message.local_nodes, workers, max_code)

    def message(self, index: int) -> OperationMessage:
        """Returns the declaration for a ps; pushes then name the operation by this index."""
        return OperationMessage(
            index=index,
            name=self.name,
            kind=int(self.kind),
            items=self.items,
            local_nodes=self.local_nodes,
            max_code=self.max_code if self.max_code > 1 else 0,
        )

    @property
    def nodes(self) -> int:
        """Nodes of all workers."""
        return self.local_nodes * self.workers

    @property
    def largest_pushed(self) -> int:
        """Largest magnitude in a worker's push: a sum of codes over its nodes."""
        return self.local_nodes * self.max_code

    @property
    def largest_result(self) -> int:
        """Largest magnitude in a result."""
        if self.kind == Kind.GATHER_CODES:
            return self.largest_pushed
        if self.kind == Kind.SCATTER_CODES:
            return self.nodes * self.max_code
        return nodes_in_result(self.nodes, self.local_nodes) * self.max_code

    @property
    def pushed_planes(self) -> int:
        """Planes of a worker's push."""
        return plane_count(self.largest_pushed)

    @property
    def total_planes(self) -> int:
        """Planes of the sums over all nodes."""
        return plane_count(self.nodes * self.max_code)

    @property
    def result_planes(self) -> int:
        """Planes of a result."""
        return plane_count(self.largest_result)

    @functools.cached_property
    def leaves_out_own(self) -> bool:
        """Whether the result for a contributor is the sum of the others.

        Two workers get each other's codes then. Among more it would save less than it costs: a ps
        would pack a sum for each of them instead of one for all.
        """
        return self.kind == Kind.CODES and self.workers == 2

    @property
    def is_packed(self) -> bool:
        """Whether it travels in the prefix code, in at most the bytes of its items."""
        return self.kind in _OF_CODES

    def pushes(self, worker: int, piece: int, contributors: Sequence[int]) -> bool:
        """Whether a contributor to a step has a part of a piece; if not, its push is empty."""
        return self.kind != Kind.GATHER_CODES or self._owner(piece, contributors) == worker

    def receives(self, worker: int, piece: int, contributors: Sequence[int]) -> bool:
        """Whether a worker gets the result of a piece: of sums for owners only the owner does."""
        return self.kind != Kind.SCATTER_CODES or self._owner(piece, contributors) == worker

    def _owner(self, piece: int, contributors: Sequence[int]) -> int:
        """Returns the owner of a piece's share: the contributors own the shares in turn.

        There is a share for each worker, so where all contribute, each owns its own.
        """
        return contributors[self._pieces_of_shares[piece][0] % len(contributors)]

    @functools.cached_property
    def pushed_bytes(self) -> int:
        """Bytes of an item of a push in memory."""
        if self.is_packed:
            return WORD_BYTES * self.pushed_planes
        return {Kind.MAX: 4, Kind.FLOATS: 4, Kind.HALVES: 2}[self.kind]

    @functools.cached_property
    def result_bytes(self) -> int:
        """Bytes of an item of the result in memory."""
        return WORD_BYTES * self.result_planes if self.is_packed else self.pushed_bytes

    @functools.cached_property
    def pieces(self) -> int:
        """Number of pieces; at least one, so that workers meet even if there are no items."""
        if self.kind in _OF_SHARES:
            return len(self._pieces_of_shares)
        return max(1, -(-self.items // self._items_in_a_piece))

    def piece_items(self, piece: int) -> tuple[int, int]:
        """Returns the index of a piece's first item and one past its last."""
        if self.kind in _OF_SHARES:
            return self._pieces_of_shares[piece][1:]
        first = piece * self._items_in_a_piece
        return first, min(first + self._items_in_a_piece, self.items)

    def push_size(self, piece: int) -> int:
        """Returns the bytes of a worker's part of a piece, the most that its payload has."""
        first, end = self.piece_items(piece)
        return (end - first) * self.pushed_bytes

    def result_size(self, piece: int) -> int:
        """Returns the bytes of the result of a piece, the most that its payload has."""
        first, end = self.piece_items(piece)
        return (end - first) * self.result_bytes

    @functools.cached_property
    def _pieces_of_shares(self) -> list[tuple[int, int, int]]:
        """Share, first item and one past the last of each piece: no piece is of two shares."""
        size, found = self._items_in_a_piece, []
        for share in range(self.workers):
            first, end = share_of(self.items, self.workers, share)
            found += [(share, i, min(i + size, end)) for i in range(first, end, size)]
        return found or [(0, 0, 0)]

    @functools.cached_property
    def _items_in_a_piece(self) -> int:
        smallest, largest = (n // self.pushed_bytes for n in (_SMALL_PIECE_BYTES, PIECE_BYTES))
        return min(largest, max(smallest, -(-self.items // _PIECES_TO_OVERLAP)))


def nodes_in_result(nodes: int, local_nodes: int) -> int:
    """Returns how many nodes' codes a result adds: all, or between two workers the other's."""
    return local_nodes if nodes == 2 * local_nodes else nodes


class PieceAssignment:
    """Spreads pieces over some ps: each goes to the ps with the fewest bytes so far.

    The part of a name before the first slash is its family. All workers declare the operations of
    a family in the same order, so they assign them alike, whichever family comes first.
    """

    def __init__(self, servers: Sequence[int]) -> None:
        """Spreads over these ps."""
        self._servers = servers
        self._bytes: dict[str, list[int]] = {}

    def assign(self, operation: Operation) -> list[int]:
        """Returns the ps of each piece of a new operation."""
        family = operation.name.partition("/")[0]
        loads = self._bytes.setdefault(family, [0] * len(self._servers))
        return list(self._assign(operation, loads))

    def _assign(self, operation: Operation, loads: list[int]) -> Iterator[int]:
        for piece in range(operation.pieces):
            chosen = loads.index(min(loads))
            loads[chosen] += operation.push_size(piece) + operation.result_size(piece)
            yield self._servers[chosen]
