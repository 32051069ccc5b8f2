"""Who is let in by a ps: what listens, who may speak to it, and what the others are told."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import NoReturn

import grpc
from google.protobuf.message import DecodeError

from terngrad.cluster.channel import PortError, name_of
from terngrad.service.messages import HELLO_KEY, SERVICE, VERSION, Hello
from terngrad.service.security import Tls
from terngrad.service.streams import identity, server_options

GRACE_SECS = 5.0  # for workers to learn of the end, and to go, or to come back for that
_END_SECS = 2.0
_MOST_COMPLAINTS = 100  # that are remembered, and logged
_SPARE_STREAMS = 16  # for those who are to be refused

Method = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


class Gate:
    """Admits workers of one training to one ps."""

    def __init__(
        self, ps: int, ps_hosts: Sequence[str], worker_hosts: Sequence[str], rules: str = ""
    ) -> None:
        """For the ps with this index; the workers must know the same hosts and rules."""
        self._rules = rules
        self._ps, self._ps_hosts, self._worker_hosts = ps, ps_hosts, worker_hosts
        self._complaints: set[str] = set()

    def admit(self, context: grpc.ServicerContext) -> int:
        """The worker that a stream says to be of; refuses it if it cannot be."""
        said = dict(context.invocation_metadata()).get(HELLO_KEY, b"")
        try:
            hello = Hello.FromString(said)
        except (DecodeError, TypeError):
            hello = Hello()
        if objection := self._objection(hello):
            self.refuse(context, objection)
        return hello.worker

    def refuse(
        self,
        context: grpc.ServicerContext,
        why: str,
        code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION,
    ) -> NoReturn:
        """Ends a stream with an error, of which the log tells."""
        context.abort(code, self.complain(context, why))

    def complain(self, context: grpc.ServicerContext, why: str) -> str:
        """Logs what is wrong with a stream, unless the same was logged of the same host.

        Returns:
          The text in characters that can be sent.
        """
        host = context.peer().rpartition(":")[0]
        # Also because no text with half of a surrogate pair can be sent.
        why = "".join(c if c.isprintable() else "?" for c in " ".join(why[:1000].split()))
        text = f"Refused {host}: {why[:500]}"
        if text not in self._complaints and len(self._complaints) < _MOST_COMPLAINTS:
            self._complaints.add(text)
            with contextlib.suppress(OSError):
                print(text, file=sys.stderr, flush=True)
        return why

    def refuse_second(self, context: grpc.ServicerContext, worker: int) -> NoReturn:
        """Ends a stream whose worker has one: the other's end may not have been noticed yet."""
        why = f"{name_of(worker, self._worker_hosts)} is here already"
        self.refuse(context, why, grpc.StatusCode.ALREADY_EXISTS)

    def _objection(self, hello: Hello) -> str:
        if not hello.version:
            return "it does not say who it is"
        if hello.version != VERSION:
            return f"its version is {hello.version}; allowed is {VERSION}"
        own = (("ps", self._ps_hosts), ("worker", self._worker_hosts))
        for name, hosts in own:
            theirs = list(hello.ps_hosts if name == "ps" else hello.worker_hosts)
            if theirs != list(hosts):
                return f"its {name} hosts are {theirs}, those of this ps {list(hosts)}"
        if hello.ps != self._ps:
            return f"it wants ps {hello.ps}; this is ps {self._ps}"
        if self._rules and hello.rules not in ("", self._rules):
            return f"its flags are {hello.rules}, those of this ps {self._rules}"
        if hello.worker >= len(self._worker_hosts):
            return f"it says to be worker {hello.worker} of {len(self._worker_hosts)}"
        return ""


class Listener:
    """The gRPC server of a ps: two streams for each worker, and some for those to be refused."""

    def __init__(
        self, workers: int, timeout_secs: float, tls: Tls | None, methods: Mapping[str, Method]
    ) -> None:
        """Does not listen yet.

        Args:
          workers: number of them.
          timeout_secs: a connection that is silent for so long is lost.
          tls: None = anybody who reaches it may connect, in plain text.
          methods: what writes a stream, by the name with which it is called.
        """
        self._tls = tls
        streams = 2 * workers + _SPARE_STREAMS
        self._server = grpc.server(
            futures.ThreadPoolExecutor(streams),
            options=server_options(timeout_secs),
            maximum_concurrent_rpcs=streams,
        )
        make = grpc.stream_stream_rpc_method_handler
        handlers = {name: make(method, identity, identity) for name, method in methods.items()}
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, handlers)]
        )

    def start(self, address: str) -> int:
        """Listens at "host:port" and returns the port, one that is free for port 0.

        Raises:
          PortError: the port is taken, or the address not one of this machine's.
        """
        try:
            if self._tls:
                port = self._server.add_secure_port(address, self._tls.server_credentials())
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            raise PortError(f"{address} cannot be listened at: the port is taken, or not ours")
        self._server.start()
        return port

    def close(self) -> None:
        """Ends all streams."""
        self._server.stop(_END_SECS).wait()
