"""The settings of scripts/config_dist.sh, and the processes that they describe."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from terngrad.cluster import interfaces, run_secret
from terngrad.launcher import hosts
from terngrad.launcher.process import Process

_DENIED = "denied.txt"  # numbers of revoked certificates
_CERTIFICATES = "~/.terngrad/certs"  # on each host
_FOLDER = "~/tmp/terngrad_dist"  # of state files and logs, on each host
_LISTS = ("PS_HOSTS", "WORKER_HOSTS", "WORKER_DEVICES", "DATA_DIR")
_ADDRESS = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):([1-9][0-9]{0,4})")
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
_EXPERIMENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SETTING = re.compile(r'^: "\$\{([A-Z_][A-Z0-9_]*):=', re.MULTILINE)  # of a job's script


class Settings:
    """The settings of scripts/config_dist.sh.

    Attributes:
      lists: the settings with an entry for each process, by name.
    """

    def __init__(self, environment: Mapping[str, str], arrays: Mapping[str, Sequence[str]]) -> None:
        """Reads and checks them; raises ValueError."""
        self._texts = environment
        self.lists = {name: arrays.get(name) or _split(self[name]) for name in _LISTS}
        self._check_addresses()
        workers = len(self.lists["WORKER_HOSTS"])
        for name in ("WORKER_DEVICES", "DATA_DIR"):
            if (count := len(self.lists[name])) not in (1, workers):
                allowed = f"1 (for all workers) or {workers} (one for each)"
                raise ValueError(f"{name} has {count} entries; allowed are {allowed}")
            self.lists[name] = [*self.lists[name]] * (workers // count)
        for name, least in (("CONNECT_SECS", 1), ("STOP_SECS", 1), ("MAX_RESTARTS", 0)):
            parsed_integer(name, self[name], least)
        if self["TLS"] not in ("auto", "True", "False"):
            raise ValueError(f"TLS must be auto, True or False, got {self['TLS']!r}")
        if not _EXPERIMENT_ID.fullmatch(self["EXPERIMENT_ID"]):
            rule = "must start with a letter or digit, then also '.', '_', '-'"
            raise ValueError(f"EXPERIMENT_ID {rule}, got {self['EXPERIMENT_ID']!r}")
        if self["SSH_CONFIG"] and not os.path.isfile(self["SSH_CONFIG"]):
            raise ValueError(f"no such file: SSH_CONFIG={self['SSH_CONFIG']}")

    def __getitem__(self, name: str) -> str:
        """Returns a text; "" where it is not set."""
        return self._texts.get(name, "")

    def _check_addresses(self) -> None:
        seen = set()
        for name in ("PS_HOSTS", "WORKER_HOSTS"):
            for address in self.lists[name]:
                found = _ADDRESS.fullmatch(address)
                if not found or int(found[2]) > 65535:
                    allowed = "HOST:PORT, with a port from 1 to 65535"
                    raise ValueError(f"{name}: must be {allowed}, got {address!r}")
                if address in seen:
                    why = "appears twice in PS_HOSTS and WORKER_HOSTS; each process needs its own"
                    raise ValueError(f"{address} {why}")
                seen.add(address)

    def hosts_are_here(self) -> bool:
        """Whether all hosts are this machine; raises ValueError if only some are."""
        addresses = [*self.lists["PS_HOSTS"], *self.lists["WORKER_HOSTS"]]
        near = {_is_this_machine(_host_of(address)) for address in addresses}
        if len(near) > 1:
            mixed = "PS_HOSTS and WORKER_HOSTS mix this machine's loopback with other hosts"
            raise ValueError(f"{mixed}, which cannot reach it")
        return near == {True}

    def processes(
        self,
        restarts: int = 0,
        environment: Callable[[str, str], Mapping[str, str]] = lambda kind, host: {},
    ) -> list[Process]:
        """Returns the servers, then the workers.

        Args:
          restarts: how often each that is killed is started again.
          environment: returns the variables of a process, given "ps" or "worker" and its host.
        """
        addresses = [",".join(self.lists[name]) for name in ("PS_HOSTS", "WORKER_HOSTS")]
        experiment, found = self["EXPERIMENT_ID"], []
        for kind, name in (("ps", "PS_HOSTS"), ("worker", "WORKER_HOSTS")):
            script = self[f"{kind.upper()}_SCRIPT"]
            for task, address in enumerate(self.lists[name]):
                own = [self.lists[each][task] for each in _LISTS[2:]] if kind == "worker" else []
                host, path = _host_of(address), f"{kind}_{task}_{address}"
                process = Process(
                    label=f"{kind} {task} ({address})",
                    command=["bash", script, *addresses, kind, str(task), *own, experiment],
                    host=host,
                    environment=environment(kind, host),
                    is_ps=kind == "ps",
                    log=f"{_FOLDER}/{experiment}_{path}.log",
                    state=f"{_FOLDER}/{path}.json",
                    is_chief=kind == "worker" and task == 0,
                    needs=own[1] if own else "",
                    max_restarts=restarts,
                )
                found.append(process)
        return found

    def command(self, host: str) -> list[str]:
        """Returns the command that runs the launcher's part on a host."""
        venv = {"TERNGRAD_VENV": self["TERNGRAD_VENV"]} if self["TERNGRAD_VENV"] else {}
        line = hosts.module_line(self["WORKSPACE"], "terngrad.launcher.processes", venv)
        if _is_this_machine(host):
            return ["bash", "-c", line]
        ssh = ["ssh", "-F", self["SSH_CONFIG"]] if self["SSH_CONFIG"] else ["ssh"]
        return hosts.ssh_command(host, line, ssh, int(self["CONNECT_SECS"]))

    def job_settings(self, kind: str) -> dict[str, str]:
        """Returns the settings of a job's script that are set here.

        Raises:
          ValueError: there is no such script.
        """
        script = f"{hosts.WORKSPACE}/{self[f'{kind.upper()}_SCRIPT']}"
        if not os.path.isfile(script):
            raise ValueError(f"no such script: {script}")
        names = ["TERNGRAD_VENV", interfaces.VARIABLE, *_SETTING.findall(Path(script).read_text())]
        return {name: self[name] for name in names if self[name]}


def _split(text: str) -> list[str]:
    return text.removesuffix(",").split(",")


def parsed_integer(name: str, text: str, least: int = 0) -> int:
    """Returns a number; raises ValueError."""
    if not re.fullmatch("0|[1-9][0-9]{0,5}", text) or int(text) < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {text!r}")
    return int(text)


def _host_of(address: str) -> str:
    """Returns the host of HOST:PORT, without brackets."""
    return address.rpartition(":")[0].strip("[]")


def _is_this_machine(host: str) -> bool:
    """Whether a host is this machine, which is not reached over ssh."""
    return _LOOPBACK.fullmatch(host) is not None


class Security:
    """The protection of the processes: certificates, or a secret alone.

    Attributes:
      makes_certificates: whether each host gets certificates from here.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises ValueError if the hosts cannot reach each other, or the settings do not fit."""
        own = {name: settings[name] for name in ("TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_DENY")}
        is_given = any(own[name] for name in ("TLS_CA", "TLS_CERT", "TLS_KEY"))
        if own["TLS_DENY"] and not is_given:
            instead = "without them make_certs.sh --revoke lists the numbers in CERTS_DIR"
            raise ValueError(f"TLS_DENY needs TLS_CA, TLS_CERT and TLS_KEY; {instead}")
        are_here = not is_given and settings.hosts_are_here()
        needs_none = are_here if settings["TLS"] == "auto" else settings["TLS"] == "False"
        self.makes_certificates = not is_given and not needs_none
        self._variables = own if is_given else {}
        if is_given or self.makes_certificates:
            secret = settings[run_secret.VARIABLE]  # the user's own
            self._variables |= {run_secret.VARIABLE: secret} if secret else {}
        else:
            self._variables[run_secret.VARIABLE] = run_secret.of_run()
            self._variables |= {} if are_here else {"ALLOW_INSECURE_NETWORK": "True"}

    def variables(self, host: str) -> dict[str, str]:
        """Returns the variables of a host's processes."""
        if not self.makes_certificates:
            return self._variables
        files = {"CA": "ca.crt", "CERT": f"{host}.crt", "KEY": f"{host}.key", "DENY": _DENIED}
        named = {f"TLS_{name}": f"{_CERTIFICATES}/{file}" for name, file in files.items()}
        return self._variables | named

    def files(self, host: str, folder: Path) -> dict[str, str]:
        """Returns the files that a host gets from a folder of certificates: texts by host path."""
        if not self.makes_certificates:
            return {}
        texts = {
            name: (folder / name).read_text() for name in ("ca.crt", f"{host}.crt", f"{host}.key")
        }
        denied = folder / _DENIED
        texts[_DENIED] = denied.read_text() if denied.exists() else ""
        return {f"{_CERTIFICATES}/{name}": text for name, text in texts.items()}
