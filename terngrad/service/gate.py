"""How a ps listens, which workers it admits, and how it refuses others."""

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

GRACE_SECS = 5.0  # for workers to learn the outcome and leave, perhaps after they reconnect
_END_SECS = 2.0
_MOST_COMPLAINTS = 100  # logged by one ps
_SPARE_STREAMS = 16  # for callers that are refused

Method = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


class Gate:
    """Admits the workers of a training to a ps."""

    def __init__(
        self, ps: int, ps_hosts: Sequence[str], worker_hosts: Sequence[str], rules: str = ""
    ) -> None:
        """Guards the ps with index `ps`; workers must have the same hosts and rules."""
        self._rules = rules
        self._ps, self._ps_hosts, self._worker_hosts = ps, ps_hosts, worker_hosts
        self._complaints: set[str] = set()

    def admit(self, context: grpc.ServicerContext) -> int:
        """Returns the worker that opened a stream; refuses the stream if its hello is invalid."""
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
        """Ends a stream with an error and logs it."""
        context.abort(code, self.complain(context, why))

    def complain(self, context: grpc.ServicerContext, why: str) -> str:
        """Logs what is wrong with a stream, once for each text and host.

        Returns:
          The text without unprintable characters.
        """
        host = context.peer().rpartition(":")[0]
        # Also because gRPC cannot send half of a surrogate pair.
        why = "".join(c if c.isprintable() else "?" for c in " ".join(why[:1000].split()))
        text = f"Refused {host}: {why[:500]}"
        if text not in self._complaints and len(self._complaints) < _MOST_COMPLAINTS:
            self._complaints.add(text)
            with contextlib.suppress(OSError):
                print(text, file=sys.stderr, flush=True)
        return why

    def refuse_second(self, context: grpc.ServicerContext, worker: int) -> NoReturn:
        """Ends a second stream of a worker; the ps may not have noticed the end of the first."""
        why = f"{name_of(worker, self._worker_hosts)} has already joined"
        self.refuse(context, why, grpc.StatusCode.ALREADY_EXISTS)

    def _objection(self, hello: Hello) -> str:
        if not hello.version:
            return "it did not introduce itself"
        if hello.version != VERSION:
            return f"its version is {hello.version}; allowed is {VERSION}"
        own = (("ps", self._ps_hosts), ("worker", self._worker_hosts))
        for name, hosts in own:
            theirs = list(hello.ps_hosts if name == "ps" else hello.worker_hosts)
            if theirs != list(hosts):
                return f"its {name} hosts are {theirs}; this ps has {list(hosts)}"
        if hello.ps != self._ps:
            return f"it wants to join ps {hello.ps}; this is ps {self._ps}"
        if self._rules and hello.rules not in ("", self._rules):
            return f"its flags are {hello.rules}; this ps has {self._rules}"
        if hello.worker >= (workers := len(self._worker_hosts)):
            return f"its worker index is {hello.worker}; allowed are 0 to {workers - 1}"
        return ""


class Listener:
    """The gRPC server of a ps: two streams for each worker, and some for refused callers."""

    def __init__(
        self, workers: int, timeout_secs: float, tls: Tls | None, methods: Mapping[str, Method]
    ) -> None:
        """Does not listen yet.

        Args:
          workers: number of workers.
          timeout_secs: time after which a silent connection is lost.
          tls: certificates; None = plain text, and any process may connect.
          methods: function that handles a stream, by name of the method.
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
        """Listens at "host:port"; returns the port, which is a free one for port 0.

        Raises:
          PortError: the port is taken, or the address is not one of this machine.
        """
        try:
            if self._tls:
                port = self._server.add_secure_port(address, self._tls.server_credentials())
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            why = "the port is taken, or the address is not one of this machine"
            raise PortError(f"cannot listen at {address}: {why}")
        self._server.start()
        return port

    def close(self) -> None:
        """Ends all streams."""
        self._server.stop(_END_SECS).wait()
