"""The all-reduce between workers: what carries it."""

from __future__ import annotations

import os

from terngrad.connect.config import ConnectConfig
from terngrad.exchange import collective, sockets
from terngrad.exchange.two_shot import Transport
from terngrad.ops import library

VARIABLE = "TERNGRAD_TRANSPORT"
_SOCKETS, _TENSORFLOW = "sockets", "tensorflow"


def choose_transport(*, encrypts: bool = False) -> str:
    """Returns what carries the gradients: sockets, if there are native kernels, or TensorFlow.

    Args:
      encrypts: whether it must encrypt them.

    Raises:
      ValueError: TERNGRAD_TRANSPORT asks for something else than there is, TensorFlow's
        collectives can no longer be started, or they would have to encrypt.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", _SOCKETS, _TENSORFLOW):
        raise ValueError(f"{VARIABLE} is {wanted!r}; allowed are {_SOCKETS} and {_TENSORFLOW}")
    why_not = f"{VARIABLE}={wanted}" if wanted == _TENSORFLOW else _why_no_sockets()
    if encrypts and why_not:
        raise ValueError(
            f"TLS needs {VARIABLE}={_SOCKETS} or parameter servers: {why_not}. Where all are "
            "trusted, train without certificates, with --allow_insecure_network (Slurm: TLS=False)"
        )
    if wanted == _SOCKETS and why_not:
        raise ValueError(f"{VARIABLE}={wanted}: {why_not}")
    if not why_not:
        return _SOCKETS
    collective.check_start()
    return _TENSORFLOW


def connect(transport: str, config: ConnectConfig, token: bytes) -> Transport:
    """Connects this process with all others, which have the same transport.

    Args:
      transport: see `choose_transport`.
      config: of this process; only sockets encrypt.
      token: secret that the processes share; only sockets need it.

    Raises:
      PortError: this process cannot listen at its port.
      MembershipError: names the processes that cannot be reached.
    """
    if transport == _TENSORFLOW:
        return collective.start(config.worker_hosts, config.rank, config.timeout_secs)
    return sockets.start(config, token)


def _why_no_sockets() -> str:
    if os.environ.get("TERNGRAD_KERNELS") == "reference":
        return "it needs native kernels, not TERNGRAD_KERNELS=reference"
    try:
        library.load()
    except library.UnavailableError as error:
        return str(error)
    return ""
