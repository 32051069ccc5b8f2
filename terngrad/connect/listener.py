"""Listens for the processes of a training, and decides which callers are admitted.

With TLS a caller must show a certificate for its host that is not revoked. With a secret it must
prove that it has it. Before that, an error tells it only that something differs.
"""

from __future__ import annotations

import collections
import contextlib
import socket
import weakref
from collections.abc import Callable, Mapping
from functools import partial

from terngrad.cluster.addresses import name_of, split_address
from terngrad.cluster.errors import LONGEST_REASON
from terngrad.connect import introduction
from terngrad.connect.acceptor import Acceptor, AnySocket, Greeting, PendingConnection
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import AdmissionError, Hello
from terngrad.connect.log_limiter import LogLimiter
from terngrad.connect.tls import ALL_OR_NONE, FIRST_OCTET, EncryptedSocket

MAX_WAITING = 256  # connections that are not admitted, besides one for each worker
_MAX_PER_ADDRESS = 32  # likewise, of one address
_MAX_COMPLAINTS = 10  # about unknown callers, and as many about members, logged in a minute
_INTRODUCTION_SECS = 10.0  # for the handshake, too
_LONGEST_ANSWER = 1 << 13  # characters, of up to 6 bytes in a frame

# Gets the connection of an admitted caller and the address of its host; returns a function that is
# called after the welcome. It must not wait. It raises AdmissionError to refuse the caller.
Open = Callable[[Hello, AnySocket, str], Callable[[], object]]


class Listener:
    """Admits callers at a listening socket."""

    def __init__(
        self,
        listening: socket.socket,
        config: ConnectConfig,
        purposes: Mapping[str, Open],
        check: Callable[[Hello], None],
        log: LogLimiter,
        *,
        max_connections: int,
        on_refused: Callable[[Hello | None, str], object] = lambda hello, why: None,
    ) -> None:
        """Admits nobody before `start`.

        Args:
          listening: socket that listens; owned from now on.
          config: of this process.
          purposes: the handler of the connections of each purpose.
          check: raises AdmissionError if a caller with this hello does not belong here.
          log: gets lines about callers.
          max_connections: connections at a time that are not admitted, besides one for each worker.
          on_refused: called with what is wrong with a caller, and with its hello if it has proved
            that it belongs to the training, as far as a proof is required.

        Raises:
          OSError: there is no descriptor left.
        """
        self._config, self._tls = config, config.tls
        self._purposes, self._check_hello = purposes, check
        self._log, self._on_refused = log, on_refused
        self._gives_reasons = bool(config.tls or config.secret)
        # The addresses and certificates of connections that are still used.
        self._admitted: weakref.WeakKeyDictionary[AnySocket, tuple[str, bytes]]
        self._admitted = weakref.WeakKeyDictionary()
        self._rejected: collections.Counter[str] = collections.Counter()
        workers = len(config.worker_hosts)
        self._acceptor = Acceptor(
            listening,
            self._greet,
            log,
            max_connections=max_connections + workers,
            max_per_address=min(max_connections, _MAX_PER_ADDRESS) + workers,
            timeout_secs=_INTRODUCTION_SECS,
            wrap=self._wrap,
            on_rejected=self._reject,
            on_poll=self._poll,
        )

    def start(self) -> None:
        """Admits callers from now on; see `Acceptor.start`."""
        self._acceptor.start()

    def close(self) -> None:
        """Stops listening; accepted connections stay."""
        self._acceptor.close()

    # ---- All in the acceptor's thread ----------------------------------------

    def _wrap(self, plain: socket.socket) -> AnySocket:
        is_encrypted = plain.recv(1, socket.MSG_PEEK) == FIRST_OCTET
        if is_encrypted and self._tls:
            return EncryptedSocket(plain, self._tls.server, server_side=True)
        return plain

    def _greet(self, caller: PendingConnection) -> Greeting:
        connection, hello = caller.connection, None
        check = partial(self._check, connection=connection)
        try:
            self._check_encryption(connection)
            hello = yield from introduction.receive_hello(
                partial(_send, connection), check, self._config.secret
            )
            then = self._purposes[hello.purpose](hello, connection, caller.address)
            shown = connection.certificate if isinstance(connection, EncryptedSocket) else b""
            self._admitted[connection] = caller.address, shown
            _send(connection, introduction.frame({"welcome": self._config.timeout_secs}))
            then()
        except AdmissionError as error:
            known = hello or error.hello
            complain(self._log, caller.address, error.fault, "unknown callers")
            self._on_refused(known, error.fault)
            reason = str(error) if self._gives_reasons and known else error.short or str(error)
            answer = {"refused": reason[:_LONGEST_ANSWER], "again": error.again}
            _send(connection, introduction.frame(answer))
            return False
        return True

    def _check_encryption(self, connection: AnySocket) -> None:
        if isinstance(connection, EncryptedSocket):
            return
        if self._tls:
            raise AdmissionError(ALL_OR_NONE, fault=f"without TLS: {ALL_OR_NONE}")
        if connection.recv(1, socket.MSG_PEEK) == FIRST_OCTET:
            raise AdmissionError(ALL_OR_NONE, fault=f"it uses TLS: {ALL_OR_NONE}")

    def _check(self, hello: Hello, connection: AnySocket) -> None:
        """Raises AdmissionError if a caller is not the process that it claims to be."""
        self._check_hello(hello)
        if hello.purpose not in self._purposes:
            raise AdmissionError(f"nobody connects for {hello.purpose!r} here")
        if isinstance(connection, EncryptedSocket):
            hosts = self._config.worker_hosts
            host, _ = split_address(hosts[hello.worker])
            certificate = connection.certificate
            if why := connection.objection(host) or self._tls.revocation(certificate):
                name = name_of(hello.worker, hosts)
                raise AdmissionError(f"{name} was refused: {why}")

    def _reject(self, caller: PendingConnection) -> None:
        if caller.fault:
            complain(self._log, caller.address, caller.fault, "unknown callers")
            self._on_refused(None, caller.fault)
        else:
            self._rejected[caller.address] += 1

    def _poll(self) -> None:
        """Logs how unknown callers ended; closes connections whose certificates were revoked."""
        rejected, self._rejected = self._rejected, collections.Counter()
        for address, count in rejected.items():
            text = f"Ended {count} connections from {address} that did not introduce themselves."
            self._log(text, kind="connections", max_lines=1)
        try:
            if not self._tls or not self._tls.refresh():
                return
        except (OSError, ValueError) as error:
            self._log(f"--tls_deny cannot be read, its last content counts: {error}", max_lines=1)
            return
        for connection, (address, shown) in list(self._admitted.items()):
            if why := self._tls.revocation(shown):
                complain(self._log, address, why)
                with contextlib.suppress(OSError):  # it has ended
                    connection.shutdown(socket.SHUT_RDWR)


def complain(log: LogLimiter, address: str, why: str, kind: str = "members") -> str:
    """Logs what is wrong with a caller or a stream.

    Args:
      log: gets the line.
      address: of its host.
      why: what is wrong with it.
      kind: "members" or "unknown callers": the latter cannot use up the lines about members.

    Returns:
      The text without unprintable characters.
    """
    # Also because half of a surrogate pair cannot be sent.
    why = " ".join(why[:LONGEST_REASON].split())
    why = "".join(c if c.isprintable() else "?" for c in why)
    log(f"Refused {address}: {why[:500]}", kind=kind, max_lines=_MAX_COMPLAINTS)
    return why


def _send(connection: AnySocket, message: bytes) -> None:
    with contextlib.suppress(OSError):  # the reader notices it, too
        connection.sendall(message)
