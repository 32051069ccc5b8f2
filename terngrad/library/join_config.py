"""The configuration of a process that joins the others, and its checks.

TensorFlow is not loaded, so that errors are reported at once.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from terngrad.cluster import interfaces, run_secret
from terngrad.cluster.addresses import (
    CONTROL_PORT_ABOVE,
    LAST_PORT,
    Interface,
    is_loopback,
    name_of,
    split_address,
)
from terngrad.cluster.managed import launch_variables
from terngrad.cluster.managed.role import COLLECTIVE, LAUNCHED, SERVED, Role, control_address
from terngrad.cluster.membership import end_because_of_another
from terngrad.connect import certificates
from terngrad.connect.certificates import Tls
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import why_too_long
from terngrad.connect.tls import TlsContexts

if TYPE_CHECKING:
    from terngrad.coordination.states import Rules


# How long a worker may be disconnected before an elastic training continues without it. A live
# process reconnects in milliseconds.
_RETURN_SECS = 0.3
ELASTIC_WAIT_SECS = 600.0  # for which an elastic training waits for workers, by default


class Naming:
    """How errors name the user's settings: here as the arguments of `join`.

    Attributes:
      encryption: what a process needs if other machines connect to it.
    """

    encryption = (
        f"tls, or a folder of certificates in {launch_variables.CERTIFICATES}, or in a network "
        f"where all are trusted allow_insecure_network=True or {launch_variables.INSECURE}=1; "
        "terngrad.launch sets them with --certificates and --allow_insecure_network"
    )

    def name(self, argument: str) -> str:
        """Returns what the user calls an argument of `join`, or a part of it, as "tls.ca"."""
        return argument.rpartition(".")[2]

    def refuse(self, argument: str, value: object, why: str) -> ValueError:
        """Returns the error of an argument that cannot have its value; "" = of no argument."""
        whole = "".join(f"{name}: " for name in argument.split(".")[:-1])
        shown = f" is {value!r}" if isinstance(value, (str, int, float)) else ""
        part = f"{self.name(argument)}{shown}: " if argument else ""
        return ValueError(f"join: {whole}{part}{why}")

    def check_tls(self, tls: Tls) -> None:
        """Raises ValueError if a file of certificates cannot be used."""
        try:
            certificates.check(tls)
        except certificates.CertificateError as error:
            raise self.refuse(f"tls.{error.field}", error.path, error.why) from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinConfig:
    """How a process joins the others; see `joining.join`.

    Attributes:
      role: which process this is, and where the others are.
      timeout_secs: how long to wait for the others, and after which a silent one is lost.
      tls: certificates; None = plain text.
      allow_insecure_network: whether other machines may connect without certificates.
      num_replicas_to_aggregate: of how many workers the gradients make a step; None = all.
      elastic: whether the training goes on without processes that are lost.
      min_size: number of workers below which an elastic training waits for others.
      elastic_wait_secs: longest such wait; then the training is saved and ends.
      synchronous: whether parameter servers add gradients; else they hold the parameters.
      folder: where worker 0 of an asynchronous training names it, see `Asynchronous`; "" = nowhere.
      has_own_servers: whether each worker starts a parameter server for a share of the values; see
        `with_own_servers`.
      lacks_kernels: whether such a worker has no native kernels, and so no mesh.
      network_interface: name of the interface at which this process listens, and from which it
        connects; "" = that of interfaces.VARIABLE, if any.
      naming: how errors name these.
      say: prints a line before this process has joined.
      end: ends this process because of another, with a last line.
    """

    role: Role
    timeout_secs: float = 60.0
    tls: Tls | None = None
    allow_insecure_network: bool = False
    num_replicas_to_aggregate: int | None = None
    elastic: bool = False
    min_size: int = 1
    elastic_wait_secs: float = ELASTIC_WAIT_SECS
    synchronous: bool = True
    folder: str = ""
    has_own_servers: bool = False
    lacks_kernels: bool = False
    network_interface: str = ""
    naming: Naming = dataclasses.field(default_factory=Naming)
    say: Callable[[str], None] = _say
    end: Callable[[str], None] = end_because_of_another

    @property
    def aggregated(self) -> int:
        """Number of workers whose gradients make a step; 0 where a launcher knows the workers."""
        given = self.num_replicas_to_aggregate
        return len(self.role.worker_hosts) if given is None else given

    @property
    def is_elastic(self) -> bool:
        """Whether steps may be made without some workers, who then need the others' state."""
        return self.elastic or self.num_replicas_to_aggregate is not None

    @property
    def needs_own_servers(self) -> bool:
        """Whether workers without parameter servers may make steps without some workers."""
        return self.is_elastic and self.role.engine == COLLECTIVE

    def with_own_servers(self) -> JoinConfig:
        """Returns this configuration with a parameter server beside each worker, at its address."""
        served = {"ps_hosts": self.role.worker_hosts, "variable_update": None}
        role = dataclasses.replace(self.role, **served)
        return dataclasses.replace(self, role=role, has_own_servers=True)

    @property
    def rules(self) -> Rules:
        """The rules that parameter servers and workers must share."""
        # Only parameter servers need this.
        from terngrad.coordination.states import Rules

        return Rules(
            self.aggregated,
            self.elastic,
            self.timeout_secs,
            self._return_secs if self.elastic else None,
            self.min_size,
            self.elastic_wait_secs,
            coordinator_moves=self.elastic and self.has_own_servers,
            lacks_kernels=self.lacks_kernels,
        )

    @property
    def connect(self) -> ConnectConfig:
        """What this process needs to connect to the others.

        Raises:
          ValueError: the secret is too short, or a file of the certificates holds something else.
          OSError: such a file cannot be read.
        """
        role, tls = self.role, self.tls
        is_served = role.ps_hosts and not self.has_own_servers
        if tls and is_served and role.job_name == "worker":
            # Whether a worker's certificate is revoked, only the ps checks.
            tls = dataclasses.replace(tls, deny="")
        contexts, secret = TlsContexts(tls) if tls else None, run_secret.shared()
        return ConnectConfig(
            role.worker_hosts,
            role.task_id,
            role.ps_hosts,
            self.timeout_secs,
            contexts,
            secret,
            self._return_secs if self.elastic and self.has_own_servers else None,
            self.interface,
            self.only_here,
        )

    @property
    def only_here(self) -> bool:
        """Whether only this machine may connect to this process; its host is loopback then."""
        # The host of a lone worker may be any: no other process connects to it.
        is_alone = len(self.role.worker_hosts) == 1 and not self.role.ps_hosts
        return not (self.tls or self.allow_insecure_network or is_alone)

    @property
    def interface(self) -> Interface | None:
        """The network interface that this process uses; None = any.

        Raises:
          ValueError: it does not exist, or has no address.
        """
        try:
            return interfaces.chosen(self.network_interface)
        except ValueError as error:
            raise self._refuse_interface(str(error)) from None

    def _check_interface(self) -> None:
        interface, own = self.interface, self._own_address
        if not interface or not own:
            return
        if why := interfaces.why_cannot_listen(interface, split_address(own)[0]):
            raise self._refuse_interface(why)

    def _refuse_interface(self, why: str) -> ValueError:
        if self.network_interface:
            return self.naming.refuse("network_interface", self.network_interface, why)
        variable = interfaces.VARIABLE
        return self.naming.refuse("", None, f"{variable} is {os.environ[variable]!r}: {why}")

    def log_interface(self) -> None:
        """Logs which addresses this process uses, if a network interface was chosen."""
        interface, role, own = self.interface, self.role, self._own_address
        if not interface:
            return
        hosts = role.ps_hosts or role.worker_hosts
        name = f"ps {role.task_id} ({own})" if role.job_name == "ps" else self.connect.name
        others = {
            name_of(i, hosts) if own else f"ps {i} ({host})": split_address(host)[0]
            for i, host in enumerate(hosts)
            if host != own and role.job_name == "worker"
        }
        place = split_address(own)[0] if own else None
        self.say(f"{name} {interfaces.describe_use(interface, place, others)}.")

    @property
    def _own_address(self) -> str | None:
        """HOST:PORT at which this process listens; None = it does not."""
        role = self.role
        if role.job_name == "ps":
            return role.ps_hosts[role.task_id]
        is_called = role.engine == COLLECTIVE or self.has_own_servers
        return role.worker_hosts[role.task_id] if is_called else None

    @property
    def _return_secs(self) -> float:
        return min(_RETURN_SECS, self.timeout_secs)

    @property
    def control_address(self) -> str:
        """HOST:PORT at which the chief listens for the others.

        Raises:
          ValueError: there is no such port.
        """
        address = control_address(self.role.worker_hosts, self.role.control_port)
        port = int(address.rpartition(":")[2])
        if not 0 < port <= LAST_PORT:
            why = (
                f"the chief listens at port {port}; allowed are 1 to {LAST_PORT}: without "
                f"control_port it is {CONTROL_PORT_ABOVE} above the chief's port in hosts"
            )
            raise self.naming.refuse("", None, why)
        return address

    def check(self) -> None:
        """Checks that the settings fit the engine, and how this process may be reached.

        Raises:
          ValueError: names it, such as the file of a certificate, or a host of another machine that
            is to be reached without one.
        """
        role, engine = self.role, self.role.engine
        self._check_interface()
        if self.min_size > 1 and not self.elastic:
            raise self.naming.refuse("min_size", self.min_size, "needs elastic")
        if self.elastic_wait_secs != ELASTIC_WAIT_SECS and not self.elastic:
            raise self.naming.refuse("elastic_wait_secs", self.elastic_wait_secs, "needs elastic")
        if engine in LAUNCHED:
            for name in ("num_replicas_to_aggregate", "elastic"):
                if (value := getattr(self, name)) not in (None, False):
                    why = f"needs engine {COLLECTIVE} or {SERVED}, not {engine}"
                    raise self.naming.refuse(name, value, why)
        elif not 0 < self.min_size <= max(1, len(role.worker_hosts)):
            why = f"allowed are 1 to {len(role.worker_hosts)}, the number of workers"
            raise self.naming.refuse("min_size", self.min_size, why)
        elif not self.elastic_wait_secs > 0:
            why = "allowed are more than 0"
            raise self.naming.refuse("elastic_wait_secs", self.elastic_wait_secs, why)
        elif not 0 < self.aggregated <= len(role.worker_hosts):
            why = f"allowed are 1 to {len(role.worker_hosts)}, the number of workers"
            raise self.naming.refuse("num_replicas_to_aggregate", self.aggregated, why)
        if engine in LAUNCHED:
            if self.tls:
                allowed = f"needs engine {COLLECTIVE} or {SERVED}, not {engine}"
                raise self.naming.refuse("tls", None, allowed)
            return
        self._check_length_of_hosts()
        if self.tls:
            self.naming.check_tls(self.tls)
        elif not self.allow_insecure_network:
            self._check_hosts()

    def _check_length_of_hosts(self) -> None:
        hosts = self.role.worker_hosts
        if why := why_too_long(hosts, self.role.ps_hosts):
            why += "; each worker counts twice, with a server of its own" * self.has_own_servers
            raise self.naming.refuse("hosts", f"{hosts[0]},...", why)

    def _check_hosts(self) -> None:
        role = self.role
        are_ps = role.ps_hosts and not self.has_own_servers
        name, hosts = ("ps_hosts", role.ps_hosts) if are_ps else ("hosts", role.worker_hosts)
        is_alone = not are_ps and len(hosts) == 1
        for host in hosts:
            if not is_alone and not is_loopback(split_address(host)[0]):
                why = f"{host} is not on this machine: needs {self.naming.encryption}"
                raise self.naming.refuse(name, hosts, why)
