"""How a ps listens, which workers it admits, and how it refuses others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import NoReturn

import grpc
from google.protobuf.message import DecodeError

from terngrad.cluster.channel import PortError, name_of, split_address
from terngrad.service import descriptors, proofs
from terngrad.service.doorkeeper import Doorkeeper
from terngrad.service.log_limiter import LogLimiter
from terngrad.service.messages import HELLO_KEY, SERVICE, VERSION, Hello
from terngrad.service.security import Tls, Withdrawn, certificate_of
from terngrad.service.streams import identity, server_options

GRACE_SECS = 5.0  # for workers to learn the outcome and leave, perhaps after they reconnect
_END_SECS = 2.0
_MOST_COMPLAINTS = 10  # about strangers, and as many about members, logged in a minute
_SPARE_STREAMS = 16  # for callers that are refused
_SPARE_CONNECTIONS = 512

Method = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


class Gate:
    """Admits the workers of a training to a ps."""

    def __init__(
        self,
        ps: int,
        ps_hosts: Sequence[str],
        worker_hosts: Sequence[str],
        log: LogLimiter,
        tls: Tls | None = None,
        rules: str = "",
        secret: bytes = b"",
    ) -> None:
        """Guards the ps with index `ps`; workers must have the same hosts, rules and secret.

        Raises:
          OSError, ValueError: see `Withdrawn`.
        """
        self._rules = rules
        self._proofs = proofs.Proofs(ps, secret)
        self._tells = bool(tls or secret)  # callers have shown that they belong here
        self._ps, self._ps_hosts, self._worker_hosts = ps, ps_hosts, worker_hosts
        self._log, self._doorkeeper = log, Doorkeeper(log, len(worker_hosts))
        self._withdrawn = Withdrawn(tls.deny if tls else "")
        self._holders: dict[grpc.ServicerContext, int] = {}  # open streams, by serial number
        self._lock = threading.Lock()

    def watch(self, port: int) -> None:
        """Ends connections of callers that are not admitted, until `close`."""
        self._doorkeeper.watch(port, self._look)

    def close(self) -> None:
        """Ends the watch."""
        self._doorkeeper.close()

    def prove(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """See `proofs.Proofs`."""
        return self._proofs.prove(message, context)

    def admit(self, context: grpc.ServicerContext) -> int:
        """Returns the worker that opened a stream; refuses the stream if its hello is invalid."""
        said = dict(context.invocation_metadata()).get(HELLO_KEY, b"")
        try:
            hello = Hello.FromString(said)
        except (DecodeError, TypeError):
            hello = Hello()
        objection, short = self._objection(hello)
        if objection := objection or self._objection_to_certificate(hello, context):
            why = self.complain(context, objection, "strangers")
            is_short = short and not self._tells
            context.abort(_refusal(objection), short if is_short else why)
        self._doorkeeper.admit(context.peer())
        return hello.worker

    def refuse(
        self,
        context: grpc.ServicerContext,
        why: str,
        code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION,
    ) -> NoReturn:
        """Ends a member's stream with an error and logs it."""
        context.abort(code, self.complain(context, why))

    def complain(self, context: grpc.ServicerContext, why: str, kind: str = "members") -> str:
        """Logs what is wrong with a stream.

        Args:
          context: the stream's.
          why: what is wrong with it.
          kind: of whom it is; strangers cannot use up the lines about members.

        Returns:
          The text without unprintable characters.
        """
        host = context.peer().rpartition(":")[0]
        # Also because gRPC cannot send half of a surrogate pair.
        why = "".join(c if c.isprintable() else "?" for c in " ".join(why[:1000].split()))
        self._log(f"Refused {host}: {why[:500]}", kind=kind, most=_MOST_COMPLAINTS)
        return why

    def refuse_second(self, context: grpc.ServicerContext, worker: int) -> NoReturn:
        """Ends a second stream of a worker; the ps may not have noticed the end of the first."""
        why = f"{name_of(worker, self._worker_hosts)} has already joined"
        self.refuse(context, why, grpc.StatusCode.ALREADY_EXISTS)

    def _objection(self, hello: Hello) -> tuple[str, str]:
        """Returns why a caller is refused, and what anybody may know of that if it tells less."""
        if not hello.version:
            return "it did not introduce itself", ""
        if hello.version != VERSION:
            return f"its version is {hello.version}; allowed is {VERSION}", ""
        if why := self._proofs.objection(hello):
            return why, ""
        own = (("ps", self._ps_hosts), ("worker", self._worker_hosts))
        for name, hosts in own:
            theirs = list(hello.ps_hosts if name == "ps" else hello.worker_hosts)
            if theirs != list(hosts):
                why = f"its {name} hosts are {theirs}; this ps has {list(hosts)}"
                return why, _differ(f"{name} hosts")
        if hello.ps != self._ps:
            return f"it wants to join ps {hello.ps}; this is ps {self._ps}", ""
        if self._rules and hello.rules not in ("", self._rules):
            return f"its flags are {hello.rules}; this ps has {self._rules}", _differ("flags")
        if hello.worker >= (workers := len(self._worker_hosts)):
            return f"its worker index is {hello.worker}; allowed are 0 to {workers - 1}", ""
        return "", ""

    def _objection_to_certificate(self, hello: Hello, context: grpc.ServicerContext) -> str:
        """Says why a caller may not come as the worker that it says it is, without TLS nothing."""
        certificate = certificate_of(context)
        if certificate is None:
            return ""
        host, _ = split_address(self._worker_hosts[hello.worker])
        if not certificate.is_for(host):
            names = ", ".join(sorted(certificate.names)) or "no host"
            who = name_of(hello.worker, self._worker_hosts)
            return f"its certificate is for {names}; {who} needs one for {host}"
        with self._lock:  # so that a file that changes meanwhile is either seen here or ends this
            if certificate.serial in self._withdrawn:
                return _withdrawn(certificate.serial)
            self._holders[context] = certificate.serial
        if not context.add_callback(lambda: self._holders.pop(context, None)):
            self._holders.pop(context, None)
        return ""

    def _look(self) -> None:
        """Ends streams whose certificates were withdrawn meanwhile."""
        try:
            with self._lock:
                if not self._withdrawn.refresh():
                    return
                ended = {c: s for c, s in [*self._holders.items()] if s in self._withdrawn}
        except (OSError, ValueError) as error:
            self._log(f"--tls_deny cannot be read, its last content counts: {error}", most=1)
            return
        for context, serial in ended.items():
            self.complain(context, _withdrawn(serial))
            context.cancel()


def _refusal(objection: str) -> grpc.StatusCode:
    """Returns how a stream is refused: for good, or so that the caller tries again."""
    codes = grpc.StatusCode
    return codes.ABORTED if objection == proofs.OUTDATED else codes.FAILED_PRECONDITION


def _differ(what: str) -> str:
    return f"its {what} differ from those of this ps, whose log says how"


def _withdrawn(serial: int) -> str:
    return f"its certificate {serial:X} was withdrawn (--tls_deny)"


class Listener:
    """The gRPC server of a ps: two streams for each worker, and some for refused callers."""

    def __init__(
        self,
        gate: Gate,
        workers: int,
        timeout_secs: float,
        tls: Tls | None,
        methods: Mapping[str, Method],
        others: int = 0,
    ) -> None:
        """Does not listen yet.

        Args:
          gate: watches the connections.
          workers: number of workers.
          timeout_secs: time after which a silent connection is lost.
          tls: certificates; None = plain text, and any process may connect.
          methods: function that handles a stream, by name of the method.
          others: most connections that the ps holds besides those of gRPC.

        Raises:
          ValueError: this process may not open as many files, or start as many threads, as the
            workers need.
        """
        self._gate, self._tls = gate, tls
        # A worker that comes back may do so before its old connection is known to be lost.
        connections = descriptors.most_connections(
            4 * workers + _SPARE_CONNECTIONS, 2 * workers, others
        )
        streams = 2 * workers + _SPARE_STREAMS
        self._server = grpc.server(
            _started_pool(streams),
            options=server_options(timeout_secs, connections),
            maximum_concurrent_rpcs=streams,
        )
        make = grpc.stream_stream_rpc_method_handler
        handlers = {name: make(method, identity, identity) for name, method in methods.items()}
        make = grpc.unary_unary_rpc_method_handler
        handlers["Prove"] = make(gate.prove, identity, identity)
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
        self._gate.watch(port)
        return port

    def close(self) -> None:
        """Ends all streams."""
        self._gate.close()
        self._server.stop(_END_SECS).wait()


def _started_pool(threads: int) -> futures.ThreadPoolExecutor:
    """Returns a pool that starts no thread later: if that failed, gRPC would accept no more calls.

    Raises:
      ValueError: this process may not start so many.
    """
    pool = futures.ThreadPoolExecutor(threads)
    all_run = threading.Barrier(threads)
    try:
        for _ in range(threads):  # each waits, so that the next needs another thread
            pool.submit(all_run.wait)
    except RuntimeError as error:
        all_run.abort()
        pool.shutdown()
        why = f"{error} (ulimit -u, or pids.max of a container)"
        raise ValueError(f"a ps needs {threads} threads for its workers' streams: {why}") from None
    return pool
