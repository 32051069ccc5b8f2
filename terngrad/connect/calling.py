"""How a worker opens a channel to a ps, which may start later, and why channels end."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Sequence

from terngrad.cluster.addresses import Interface, dial, split_address
from terngrad.cluster.errors import MembershipError
from terngrad.connect import introduction
from terngrad.connect.acceptor import AnySocket
from terngrad.connect.channel import Channel, ChannelEnd
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import SIZE_BYTES, AuthenticationError, Hello
from terngrad.connect.tls import ChangedError, EncryptedSocket, EncryptionError, TlsContexts

_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 0.2, 2.0
_CONNECT_SECS = 5.0  # for each attempt: a firewall may swallow it
_LEAST_SECS = 0.001  # shortest time-out of a wait
_END_SECS = 5.0  # in which a ps reads the last messages of a worker

_NO_ANSWER = "it accepts connections but does not answer"

# Why a channel ended.
_ENDINGS = {
    ChannelEnd.DONE: "{name} ended before this worker",
    ChannelEnd.REFUSED: "{name} refused this worker: {why}",
    ChannelEnd.CLOSED: "{name} ended this worker's stream: {why}",
    ChannelEnd.UNAVAILABLE: "{name} cannot apply gradients now: {why}",
    ChannelEnd.LOST: "{name} died or cannot be reached: {why}",
    ChannelEnd.SILENT: "{name} no longer answers: {why}",
}


def ps_name(ps: int, ps_hosts: Sequence[str]) -> str:
    """Returns the name of a ps for messages."""
    return f"ps {ps} ({ps_hosts[ps]})"


class RefusedError(MembershipError):
    """A ps refuses this worker for good."""


class PsUnreachableError(Exception):
    """A ps cannot be reached or ended a channel; another attempt may succeed.

    Attributes:
      nobody_listens: whether its machine says that no process listens at its address.
    """

    def __init__(self, why: str, *, nobody_listens: bool = False) -> None:
        """Says why."""
        super().__init__(why)
        self.nobody_listens = nobody_listens


class Search:
    """The attempts to reach a ps: how long they continue, and the pauses between them.

    Attributes:
      was_there: whether the ps was reached before.
    """

    def __init__(
        self,
        name: str,
        timeout_secs: float,
        *,
        was_there: bool,
        refused_secs: float | None = None,
    ) -> None:
        """Starts the search now.

        Args:
          name: name of the ps, for messages.
          timeout_secs: time after which the search ends.
          was_there: whether the ps was reached before, for messages.
          refused_secs: the same where nobody listens at its address; None = timeout_secs.
        """
        began, refused_secs = time.monotonic(), min(timeout_secs, refused_secs or timeout_secs)
        self._until = began + timeout_secs, f"within {timeout_secs:g} s"  # with the error's words
        self._refused_until = began + refused_secs, f"within {refused_secs:g} s"
        self._name = name
        self.was_there = was_there
        self._next_secs = _FIRST_PAUSE_SECS

    @property
    def left_secs(self) -> float:
        """Time after which the search ends; at least a short one for the last attempt."""
        return max(_FIRST_PAUSE_SECS, self._until[0] - time.monotonic())

    def shorten(self, secs: float) -> None:
        """Ends the search within `secs` seconds, because this worker must end."""
        self._until = min(self._until[0], time.monotonic() + secs), "before this worker had to end"

    def pause_secs(self, error: PsUnreachableError) -> float:
        """Returns the pause before the next attempt, after one that failed with `error`.

        Raises:
          MembershipError: the time is over.
        """
        until = min(self._until, self._refused_until) if error.nobody_listens else self._until
        deadline, within = until
        if time.monotonic() > deadline:
            what = "did not come back" if self.was_there else "cannot be reached"
            raise MembershipError(f"{self._name} {what} {within}: {error}") from None
        secs, self._next_secs = self._next_secs, min(2 * self._next_secs, _LONGEST_PAUSE_SECS)
        return secs


class ChannelOpener:
    """Opens channels from this process to one ps.

    Attributes:
      name: of the ps, for messages.
      nobody_listens: whether its machine said so at the last attempt.
    """

    def __init__(
        self, config: ConnectConfig, purpose: str, ps: int, longest: int, rules: str = ""
    ) -> None:
        """Sends nothing yet.

        Args:
          config: of this worker.
          purpose: of the channels; see `Hello`.
          ps: index of the ps.
          longest: see `Channel`.
          rules: see `Hello`.
        """
        self.name, self.nobody_listens = ps_name(ps, config.ps_hosts), False
        self._config, self._hello = config, config.hello(purpose, ps, rules)
        self._longest, self._address = longest, split_address(config.ps_hosts[ps])

    def try_once(self, timeout_secs: float) -> Channel:
        """Makes one attempt to open a channel.

        Raises:
          PsUnreachableError: the ps cannot be reached now, or does not answer in time.
          RefusedError: the ps refuses this worker; the message says why.
        """
        self.nobody_listens = False
        try:
            return self._connect(time.monotonic() + timeout_secs)
        except ConnectionRefusedError as error:
            self.nobody_listens = True
            raise PsUnreachableError(str(error), nobody_listens=True) from None
        except AuthenticationError as error:
            raise RefusedError(f"{self.name}: {error}") from None
        except introduction.AdmissionError as error:
            if error.again:
                raise PsUnreachableError(str(error)) from None
            raise RefusedError(f"{self.name} refused this worker: {error}") from None
        except ChangedError as error:
            raise PsUnreachableError(f"bytes have changed on the way ({error})") from None
        except TimeoutError:
            raise PsUnreachableError(_NO_ANSWER) from None
        except OSError as error:
            raise PsUnreachableError(str(error)) from None

    def open(
        self,
        over: threading.Event | None = None,
        secs: float | None = None,
        refused_secs: float | None = None,
        *,
        was_there: bool = False,
    ) -> Channel:
        """Opens a channel; waits for a ps that does not listen yet, unless this worker ends.

        Args:
          over: is set when this worker ends.
          secs: how long to wait; None = the time-out.
          refused_secs: how long to wait where nobody listens at its address; None = as long.
          was_there: whether the ps was reached before, for messages.

        Raises:
          RefusedError: the ps refuses this worker; the message says why.
          MembershipError: the ps cannot be reached in time.
        """
        timeout_secs = secs or self._config.timeout_secs
        search = Search(self.name, timeout_secs, was_there=was_there, refused_secs=refused_secs)
        while True:
            try:
                return self.try_once(search.left_secs)
            except PsUnreachableError as error:
                pause_secs = search.pause_secs(error)
            if (over or threading.Event()).wait(pause_secs):
                raise MembershipError(f"{self.name} is not called any more: this worker ends")

    def send_last(self, messages: Sequence[bytes]) -> None:
        """Sends messages over a new channel; waits until the ps has read them.

        They are lost if the ps cannot be reached or refuses this worker.
        """
        with contextlib.suppress(MembershipError, OSError):
            channel = self.open()
            for message in messages:
                channel.send(message)
            channel.end()
            channel.drain(_END_SECS)

    def _connect(self, deadline: float) -> Channel:
        connected, theirs = connect(self._config, self._address, self._hello, deadline)
        return Channel(connected, self._longest, self._config.timeout_secs, theirs)


def connect(
    config: ConnectConfig, address: tuple[str, int], hello: Hello, deadline: float
) -> tuple[AnySocket, float]:
    """Connects to a process and makes the introduction.

    Args:
      config: of this process.
      address: host and port at which the other listens; its certificate is for its host in the
        list of hosts.
      hello: of this process.
      deadline: for all of it.

    Returns:
      The connection, and the time after which the other counts this process as lost.

    Raises:
      AdmissionError: the other refuses this process, or has not the same secret.
      OSError: it does not answer in time, or, as an EncryptionError, is not what it should be.
    """
    with contextlib.ExitStack() as opened:
        connected = _dialed(address, deadline, config.interface)
        opened.callback(lambda: connected.close())
        if config.tls:
            hosts = config.ps_hosts or config.worker_hosts
            host, _ = split_address(hosts[hello.callee])
            connected = _encrypted(connected, config.tls, host, deadline)
        receive = lambda: _receive(connected, deadline)
        their_secs = introduction.introduce(hello, config.secret, connected.sendall, receive)
        opened.pop_all()
    return connected, their_secs


def _dialed(
    address: tuple[str, int], deadline: float, interface: Interface | None
) -> socket.socket:
    """Connects to a host and port.

    Raises:
      OSError: nobody listens there, or does not answer in time.
    """
    secs = min(_CONNECT_SECS, max(_LEAST_SECS, deadline - time.monotonic()))
    try:
        connected = dial(address, secs, interface)
    except TimeoutError:
        raise ConnectionError("timed out") from None
    if connected.getsockname() == connected.getpeername():
        # TCP can connect a socket to itself if nothing listens on a port of the outgoing range.
        connected.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    return connected


def _encrypted(
    connected: socket.socket, contexts: TlsContexts, host: str, deadline: float
) -> EncryptedSocket:
    """Makes the handshake of TLS with a process of a host.

    Raises:
      OSError: it does not answer in time, or, as an EncryptionError, is not what it should be.
    """
    found = EncryptedSocket(connected, contexts.client)
    found.settimeout(max(_LEAST_SECS, deadline - time.monotonic()))
    found.handshake()
    if why := found.objection(host) or contexts.revocation(found.certificate):
        raise EncryptionError(why)
    return found


def why_ended(channel: Channel, name: str) -> str:
    """Says in one line why a channel to a ps ended."""
    end, why = channel.ending or (ChannelEnd.CLOSED, "it was given up")
    return _ENDINGS[end].format(name=name, why=" ".join(why.split()))


def _receive(connected: AnySocket, deadline: float) -> dict:
    """Returns the next message of an introduction.

    Raises:
      OSError: there is none in time.
    """

    def read(size: int) -> bytes:
        found = b""
        while len(found) < size:
            connected.settimeout(max(_LEAST_SECS, deadline - time.monotonic()))
            if not (more := connected.recv(size - len(found))):
                raise ConnectionError("it ended the connection")
            found += more
        return found

    size = int.from_bytes(read(SIZE_BYTES), "little")
    return introduction.read(read(size)) if size <= introduction.LONGEST else {}
