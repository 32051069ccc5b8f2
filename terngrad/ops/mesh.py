"""Joins this process with others by sockets: the native mesh, cc/net/mesh.h, and its op."""

from __future__ import annotations

import ctypes
import enum
import resource
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from terngrad.ops import library
from terngrad.ops.gradient_kernels import EncodeInputs
from terngrad.ops.native import encode_arguments, parts_attribute
from terngrad.ops.tls import ERROR_BYTES, NativeTlsSocket
from terngrad.parts import Parts

_REFUSED, _CANCELLED = 2, 3  # see terngrad_mesh_failure


class MeshKind(enum.IntEnum):
    """What an operation does; see `Kind` of cc/net/plan.h."""

    GATHER = 1
    ALL_TO_ALL = 2
    BROADCAST = 3
    CODES = 4
    FLOATS = 5
    SCATTER_CODES = 6
    GATHER_CODES = 7
    MAXIMA = 8
    HALVES = 9


class Failure(NamedTuple):
    """Why the operations of a mesh fail.

    Attributes:
      why: the reason; "" = they do not.
      is_refusal: whether another process violated the protocol, so its connection was refused.
      is_own: whether a step of this process failed by an error of its own, before it had begun its
        operations.
    """

    why: str
    is_refusal: bool = False
    is_own: bool = False


class Encoding(NamedTuple):
    """What one node encodes; see `GradientKernels.encode`."""

    inputs: EncodeInputs
    variables: Sequence[int]
    encoder: str
    parts: Sequence[Parts] = ()


class Decoding(NamedTuple):
    """What a sum of codes stands for; see `GradientKernels.decode`."""

    units: tf.Tensor
    nodes: tf.Tensor
    shapes: Sequence[Sequence[int]]
    parts: Sequence[Parts] = ()


class JoinedCodes(NamedTuple):
    """The codes of this process, their sum or means, and bytes.

    Attributes:
      codes: uint32 [G, k].
      result: their sum over the processes, or the means that were decoded.
      octets: see `Mesh.join`.
    """

    codes: tf.Tensor
    result: tf.Tensor | list[tf.Tensor]
    octets: tf.Tensor


class Mesh:
    """This process' end of the sockets between P processes, and a thread that serves them."""

    def __init__(
        self,
        rank: int,
        names: Sequence[str],
        sockets: Mapping[int, socket.socket | NativeTlsSocket],
    ) -> None:
        """Takes ownership of the sockets and starts the thread.

        Args:
          rank: index of this process.
          names: of all processes, for messages.
          sockets: one to each other process, plain or encrypted.

        Raises:
          library.UnavailableError: see `library.load`.
          ValueError: this process may open no more files.
        """
        self._ops = library.load()
        self._functions = library.load_functions()
        self._declared: list[tuple[bytes, int, int, int, int, bytes]] = []  # by index
        self._lock = threading.Lock()  # between declarations and `renew`
        self._handle = self._new(rank, names, sockets)

    def renew(
        self,
        rank: int,
        names: Sequence[str],
        sockets: Mapping[int, socket.socket | NativeTlsSocket],
    ) -> None:
        """Continues with other sockets, perhaps of fewer or more processes; see `__init__`.

        Operations stay declared, also in graphs, and begin with their first round on all processes.
        None may be under way: `end` this mesh first.
        """
        with self._lock:
            new = self._new(rank, names, sockets)
            for declaration in self._declared:
                self._declare(new, declaration)
            self._functions.terngrad_mesh_replace(self._handle, new)

    def _new(
        self,
        rank: int,
        names: Sequence[str],
        sockets: Mapping[int, socket.socket | NativeTlsSocket],
    ) -> int:
        handle = self._functions.terngrad_mesh_new(rank, "\n".join(names).encode())
        for peer, each in sockets.items():
            is_plain = isinstance(each, socket.socket)
            kind = "terngrad_mesh_add" if is_plain else "terngrad_mesh_add_encrypted"
            getattr(self._functions, kind)(handle, peer, each.detach())
        if why := self._failure(handle).why:  # later ones are those of operations
            self._functions.terngrad_mesh_close(handle, 0.0)
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            raise ValueError(
                f"{names[rank]}: {why}; the limit of open files (ulimit -n) is {limit}"
            )
        self._functions.terngrad_mesh_start(handle)
        return handle

    def declare(
        self,
        name: str,
        kind: MeshKind,
        rows: int,
        largest: tuple[int, int] = (0, 0),
        path: str = "",
    ) -> int:
        """Returns the index of an operation, which all processes must declare alike.

        Args:
          name: of the operation.
          kind: what it does.
          rows: groups of 32 codes, floats, or bytes.
          largest: magnitude of a process' codes, and of their sum.
          path: instruction set that adds and packs codes; "" = the fastest.

        Raises:
          ValueError: the name belongs to another operation.
        """
        declaration = name.encode(), int(kind), rows, *largest, path.encode()
        with self._lock:
            index = self._declare(self._handle, declaration)
            if index == len(self._declared):
                self._declared.append(declaration)
        return index

    def _declare(self, handle: int, declaration: tuple[bytes, int, int, int, int, bytes]) -> int:
        error = ctypes.create_string_buffer(ERROR_BYTES)
        index = self._functions.terngrad_mesh_declare(handle, *declaration, error, ERROR_BYTES)
        if index < 0:
            name, why = declaration[0].decode(), error.value.decode()
            raise ValueError(f"operation {name!r} cannot be declared: {why}")
        return index

    def join(
        self, local: tf.Tensor, operation: int, shape: Sequence[int | None]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Joins an operation; no thread waits for its result.

        Args:
          local: of this process.
          operation: its index.
          shape: of the result; the first size may be None, that which the operation gives among
            the present processes.

        Returns:
          The result, of this shape, and the bytes of payloads that were sent and received for it,
          int64 [2].
        """
        with tf.device("/CPU:0"):
            return self._ops.terngrad_join(
                local=local, mesh=self._handle, operation=operation, shape=list(shape)
            )

    def join_codes(
        self,
        local: tf.Tensor | Encoding,
        operation: int,
        shape: Sequence[int],
        decoding: Decoding | None = None,
    ) -> JoinedCodes:
        """Joins an operation that adds codes; see `join`.

        Args:
          local: codes of this process; or gradients, of whose codes parts are sent while others are
            being encoded.
          operation: adds them.
          shape: of the sum.
          decoding: decodes parts of the sum while others are on their way; None = nothing does.
        """
        given: dict[str, Any] = {"mesh": self._handle, "operation": operation}
        if decoding:
            given |= decoding._asdict() | {"shapes": list(decoding.shapes)}
            given["parts"] = parts_attribute(decoding.parts)
        with tf.device("/CPU:0"):
            if isinstance(local, Encoding):
                given |= encode_arguments(*local)
                if decoding:
                    means, codes, octets = self._ops.terngrad_encode_join_means(**given)
                    return JoinedCodes(codes, means, octets)
                return JoinedCodes(*self._ops.terngrad_encode_join(**given))
            if decoding:
                given["n"] = len(decoding.shapes)
                return JoinedCodes(local, *self._ops.terngrad_join_means(local=local, **given))
            return JoinedCodes(local, *self.join(local, operation, shape))

    @property
    def octets(self) -> tuple[int, int]:
        """Bytes of payloads that were sent and received so far."""
        both = (ctypes.c_int64 * 2)()
        self._functions.terngrad_mesh_bytes(self._handle, both)
        return both[0], both[1]

    @property
    def failure(self) -> Failure:
        """Why operations fail."""
        return self._failure(self._handle)

    def _failure(self, handle: int) -> Failure:
        text = ctypes.create_string_buffer(ERROR_BYTES)
        kind = self._functions.terngrad_mesh_failure(handle, text, ERROR_BYTES)
        why = text.value.decode(errors="replace")
        return Failure(why, kind == _REFUSED, kind == _CANCELLED)

    def fail(self, why: str) -> None:
        """Ends all operations, also later ones, up to `renew`."""
        self._functions.terngrad_mesh_fail(self._handle, why.encode())

    def end(self, secs: float) -> None:
        """Sends what is queued, for at most `secs`; operations fail from then on, up to `renew`."""
        self._functions.terngrad_mesh_end(self._handle, secs)

    def close(self, secs: float) -> None:
        """Sends what is queued, for at most `secs`; operations that are not done then fail."""
        self._functions.terngrad_mesh_close(self._handle, secs)
