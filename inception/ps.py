"""A parameter server (ps) as a process: --job_name=ps of the *_distributed_train programs."""

import contextlib
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from inception import runtime
from inception.cluster_config import ClusterConfig
from inception.flag_table import refuse
from inception.flags import TrainConfig
from inception.ps_report import PsReport
from terngrad.exchange.channel import PortError, split_address
from terngrad.exchange.parameter_server import memory
from terngrad.exchange.parameter_server.calls import ps_name
from terngrad.exchange.parameter_server.coordinator import Rules
from terngrad.exchange.parameter_server.reduction import Reduction
from terngrad.exchange.parameter_server.security import Tls, is_loopback, listening_address
from terngrad.exchange.parameter_server.server import Server
from terngrad.ops.choice import choose_kernels

_REPORT_SECS = 30.0


def serve(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Serves until all workers have ended, or one was lost for good, or a signal comes.

    Raises:
      ValueError: names the worker that was lost, or a flag that cannot be honoured.
      SystemExit: with the signal's status, if it came while workers were here.
    """
    tell_hosts(cluster)
    tls = security(cluster)
    runtime.configure(
        intra_threads=config.num_intra_threads,
        inter_threads=config.num_inter_threads,
        deterministic=config.deterministic,
        log_placement=False,
    )
    memory.keep_freed()
    wanted, path = os.environ.get("TERNGRAD_KERNELS", ""), os.environ.get("TERNGRAD_SIMD", "")
    kernels, why_reference = choose_kernels(wanted, path)
    rules = Rules(cluster.aggregated, cluster.elastic, cluster.worker_timeout_secs)
    ps, hosts, workers = cluster.task_id, cluster.ps_hosts, cluster.worker_hosts
    server = Server(ps, hosts, workers, Reduction(kernels).reduce, rules, tls, say)
    name = ps_name(ps, hosts)
    with stopped_by_signals(server.stop) as signals:
        who = listen(server, cluster, tls)
        say(f"{name} waits for {len(workers)} workers {who}.")
        why = f", because {why_reference}" if why_reference else ""
        say(f"Codes are added by {kernels.title}{why}.")
        folder = os.path.join(config.train_dir, f"ps_{ps}") if config.save_summaries_secs else None
        report = PsReport(server, name, workers, _REPORT_SECS, folder, say)
        outcome = server.wait(report.beat)
        report.report()
        left = server.attendance.present
        server.close()
    _tell_end(name, outcome, left, signals)


def listen(server: Server, cluster: ClusterConfig, tls: Tls | None) -> str:
    """Lets a ps listen; returns, in words, to whom."""
    host, port = split_address(cluster.ps_hosts[cluster.task_id])
    only_here = tls is None and not cluster.allow_insecure_network
    addresses = [listening_address(host, port, only_here=only_here)]
    if not only_here:
        addresses.append(f"[::]:{port}")  # a router may know this machine by another address
    try:
        _listen_at_one_of(server, addresses)
    except PortError as error:
        raise refuse("ps_hosts", ",".join(cluster.ps_hosts), str(error)) from None
    return "who have certificates" if tls else "on this machine" if only_here else "anywhere"


def _listen_at_one_of(server: Server, addresses: Sequence[str]) -> None:
    for address in addresses[:-1]:
        with contextlib.suppress(PortError):
            server.start(address)
            return
    server.start(addresses[-1])


def say(text: str) -> None:
    """Logs a line; a full disk or a closed pipe is no reason to end a training."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def tell_hosts(cluster: ClusterConfig) -> None:
    """Prints who takes part."""
    print(f"PS hosts are: {list(cluster.ps_hosts)}", flush=True)
    print(f"Worker hosts are: {list(cluster.worker_hosts)}", flush=True)


def security(cluster: ClusterConfig) -> Tls | None:
    """Certificates, if flags name them.

    Raises:
      ValueError: there are none, and a ps is not on this machine.
      OSError: a file cannot be read.
    """
    if cluster.tls_ca:
        _check_certificates(cluster)
        return Tls(cluster.tls_ca, cluster.tls_cert, cluster.tls_key)
    if not cluster.allow_insecure_network:
        for host in cluster.ps_hosts:
            if not is_loopback(split_address(host)[0]):
                why = (
                    f"{host} is not on this machine: needs --tls_ca, --tls_cert and --tls_key, or "
                    "--allow_insecure_network in a network where all are trusted"
                )
                raise refuse("ps_hosts", ",".join(cluster.ps_hosts), why)
    return None


def _check_certificates(cluster: ClusterConfig) -> None:
    """Says what is wrong with the files, which gRPC would not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(cluster.tls_ca)
    except ssl.SSLError:
        raise refuse("tls_ca", cluster.tls_ca, "there is no certificate in it") from None
    try:
        context.load_cert_chain(cluster.tls_cert, cluster.tls_key, password="")
    except ssl.SSLError:
        why = f"there is no certificate in it, or none for --tls_key={cluster.tls_key}"
        raise refuse("tls_cert", cluster.tls_cert, why) from None


@contextlib.contextmanager
def stopped_by_signals(end: Callable[[], None]) -> Iterator[list[signal.Signals]]:
    """Calls `end` at SIGTERM or Ctrl-C, unless it is ignored; yields the signals that came."""
    came: list[signal.Signals] = []

    def stop(number: int, frame) -> None:
        del frame
        came.append(signal.Signals(number))
        threading.Thread(target=end).start()  # this one may hold the lock that `end` needs

    wanted = (signal.SIGTERM, signal.SIGINT)
    heard = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_end(name: str, outcome: str | None, left: int, signals: list[signal.Signals]) -> None:
    if outcome:
        raise ValueError(f"{name} ends: {outcome}")
    if outcome is None and left:
        print(f"{signals[0].name}: {name} left {left} workers.", flush=True)
        sys.exit(128 + signals[0])
    why = "all workers are done" if outcome is not None else signals[0].name
    print(f"{name} ends: {why}.", flush=True)
