"""Workers that meet at the chief's control port and exchange without parameter servers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf

from inception.cluster.watch import watching
from inception.cluster.workers import Workers
from inception.flags.cluster import ClusterConfig
from inception.flags.table import refuse
from terngrad.cluster import admission
from terngrad.cluster.channel import PortError, split_address
from terngrad.exchange import collective, sockets
from terngrad.exchange.connection import Connection
from terngrad.ops import library
from terngrad.service.security import is_loopback

_VARIABLE = "TERNGRAD_TRANSPORT"
_SOCKETS, _TENSORFLOW = "sockets", "tensorflow"


@contextlib.contextmanager
def joined(cluster: ClusterConfig) -> Iterator[Workers]:
    """See `join.joined`."""
    hosts, rank, timeout_secs = cluster.worker_hosts, cluster.task_id, cluster.worker_timeout_secs
    transport = _transport()
    _check_network(cluster)
    print(f"Worker hosts are: {list(hosts)}", flush=True)
    try:
        peers = admission.join(hosts, rank, cluster.control_address, timeout_secs)
    except PortError as error:
        raise refuse("control_port", cluster.control_port, str(error)) from None
    token = admission.share_token(peers, rank, timeout_secs)
    with contextlib.ExitStack() as stack:

        def connect() -> Connection:
            try:
                if transport == _TENSORFLOW:
                    return collective.start(hosts, rank, timeout_secs)
                connection = sockets.start(hosts, rank, token, timeout_secs)
            except PortError as error:
                why = f"must name free ports of the workers: {error}"
                raise refuse("worker_hosts", ",".join(hosts), why) from None
            stack.callback(connection.close)
            return connection

        doors = {i: host for i, host in enumerate(hosts) if i != rank}
        facts = {_VARIABLE: transport}
        with watching(cluster, hosts, rank, peers, connect, doors=doors, facts=facts) as workers:
            yield workers


def _check_network(cluster: ClusterConfig) -> None:
    """Refuses to send gradients between machines unless the user trusts the network."""
    hosts = cluster.worker_hosts
    if cluster.allow_insecure_network or len(hosts) == 1:
        return
    for host in hosts:
        if not is_loopback(split_address(host)[0]):
            why = (
                f"{host} is not on this machine, and all-reduce is not encrypted: needs "
                "--allow_insecure_network in a network where all are trusted"
            )
            raise refuse("worker_hosts", ",".join(hosts), why)


def _transport() -> str:
    """Returns what carries the gradients: sockets, if all of them are on CPUs.

    Raises:
      ValueError: the variable asks for something else than there is.
    """
    wanted = os.environ.get(_VARIABLE, "")
    if wanted not in ("", _SOCKETS, _TENSORFLOW):
        raise ValueError(f"{_VARIABLE} is {wanted!r}; allowed are {_SOCKETS} and {_TENSORFLOW}")
    if wanted == _TENSORFLOW:
        return wanted
    why_not = _why_no_sockets()
    if wanted and why_not:
        raise ValueError(f"{_VARIABLE}={wanted}: {why_not}")
    return _TENSORFLOW if why_not else _SOCKETS


def _why_no_sockets() -> str:
    if tf.config.list_physical_devices("GPU"):
        return "gradients on GPUs need TensorFlow's collectives"
    if os.environ.get("TERNGRAD_KERNELS") == "reference":
        return "it needs native kernels, not TERNGRAD_KERNELS=reference"
    try:
        library.load()
    except library.UnavailableError as error:
        return str(error)
    return ""
