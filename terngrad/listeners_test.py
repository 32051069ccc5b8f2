"""No port of a training is lost to a flood of callers, or to a lack of descriptors or threads."""

import contextlib
import dataclasses
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures

import pytest

from terngrad.asynchronous import server as asynchronous
from terngrad.asynchronous.snapshots import SnapshotSettings
from terngrad.asynchronous.store import Store
from terngrad.cluster import admission
from terngrad.cluster.addresses import listen, split_address
from terngrad.connect.calling import ChannelOpener
from terngrad.connect.config import ConnectConfig
from terngrad.connect.tls import TlsContexts
from terngrad.coordination.states import Rules
from terngrad.exchange import sockets
from terngrad.exchange.parameter_server.server.arithmetic import PackedArithmetic
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.ops.packing import ReferencePacking
from terngrad.ops.reference import ReferenceKernels
from terngrad.service.messages import LONGEST_RESULT
from terngrad.spark.certificates import make_certificates as make_spark_certificates
from terngrad.spark.driver import Driver, DriverConnection, Placement, ProcessId
from terngrad.testing.addresses import free_addresses
from terngrad.testing.certificates import make_certificates
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.ps_clients import WORKERS, call_ps, config_of
from terngrad.training import schedules

pytestmark = pytest.mark.slow

SECS = HANG_SECS
HOST = "127.0.0.1"
LIMIT = 256  # descriptors
OWN = 16  # that must be left at any time
CALLERS, FEW = 300, 50

# Opens connections, keeps the newest, and sends nothing, the beginning of TLS, or something else.
FLOOD = """
import collections, contextlib, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
port, callers = map(int, sys.argv[1:])
held = collections.deque(maxlen=callers)
def call(i):
    with contextlib.suppress(OSError):
        held.append(socket.create_connection(("127.0.0.1", port), 0.1))
        held[-1].sendall((b"", b"\\x16\\x03\\x01", b"GET / HTTP/1.0")[i % 3])
for line in sys.stdin:
    for i in range(callers):
        call(i)
    print("flooded", flush=True)
    if line == "go on\\n":
        while True:
            call(i := i + 1)
            time.sleep(0.005)
"""


@dataclasses.dataclass
class Served:
    """A listener of this process.

    Attributes:
      port: where it listens.
      join: lets a worker join, and fails if it cannot.
      bother: makes a call that is refused.
    """

    port: int
    join: object
    bother: object = lambda: None


@contextlib.contextmanager
def ps(tls, folder):
    """A ps of synchronous training."""
    (host,) = free_addresses(1)
    rules = Rules(2, False, SECS)
    server = Server(config_of([host], 0, tls=tls), PackedArithmetic(ReferencePacking()), rules)
    server.start(host)

    def join():
        clients = [Client(config_of([host], rank, tls=tls)) for rank in range(2)]
        with futures.ThreadPoolExecutor(2) as pool:
            for view in [pool.submit(c.coordination.next_view, 0, is_live=False) for c in clients]:
                view.result(SECS)
        for client in clients:
            client.close(is_done=False)

    yield Served(split_address(host)[1], join, lambda: bother(host, tls))
    server.close()


def bother(host, tls):
    """Makes a call to a ps that it refuses."""
    with contextlib.suppress(OSError):  # a flood may have ended it
        call_ps(host, b"GET / HTTP/1.0", TlsContexts(tls).client if tls else None)


@contextlib.contextmanager
def asynchronous_ps(tls, folder):
    """A ps of asynchronous training."""
    (host,) = free_addresses(1)
    make = lambda text: schedules.fixed(0.1)
    store = Store(0, 1, WORKERS, ReferenceKernels(), make, SnapshotSettings(str(folder), 10), print)
    server = asynchronous.Server(config_of([host], 0, tls=tls), store)
    server.start(host)
    caller = ChannelOpener(config_of([host], 1, tls=tls), "Update", 0, LONGEST_RESULT)
    join = lambda: caller.open().cut()
    yield Served(split_address(host)[1], join, lambda: bother(host, tls))
    server.close()


@contextlib.contextmanager
def chief(tls, folder):
    """The chief of an all-reduce."""
    hosts = free_addresses(2)
    configs = [ConnectConfig(hosts, i, (), SECS, tls and TlsContexts(tls)) for i in range(2)]
    listener = listen(*split_address(hosts[0]))
    with futures.ThreadPoolExecutor(1) as pool:
        met = pool.submit(admission.receive_all, configs[0], listener)
        repeat(lambda: refuse_a_byte(split_address(hosts[0])))  # its thread runs

        def join():
            reach = lambda: admission.reach_chief(configs[1], [hosts[0]])
            (peer,) = repeat(reach).values()
            (other,) = met.result(SECS).values()
            peer.close()
            other.close()

        yield Served(split_address(hosts[0])[1], join)


@contextlib.contextmanager
def mesh(tls, folder):
    """A worker of an all-reduce."""
    hosts = free_addresses(2)
    contexts = tls and TlsContexts(tls)
    config = lambda rank: ConnectConfig(hosts, rank, (), SECS, contexts)
    start = lambda rank: sockets.start(config(rank), b"secret")
    with futures.ThreadPoolExecutor(1) as pool:
        started = pool.submit(start, 0)
        repeat(lambda: refuse_a_byte(split_address(hosts[0])))  # its thread runs

        def join():
            other = start(1)
            started.result(SECS).close()
            other.close()

        yield Served(split_address(hosts[0])[1], join)


def refuse_a_byte(address):
    """Fails if no listener refuses a byte that is no hello."""
    with socket.create_connection(address, SECS) as caller:
        caller.sendall(b"?")
        caller.shutdown(socket.SHUT_WR)
        while caller.recv(100):
            pass


def repeat(act):
    """Acts until it works."""
    deadline = time.monotonic() + SECS
    while True:
        try:
            return act()
        except (OSError, ValueError):  # a flood may have ended its connection
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


@contextlib.contextmanager
def spark_driver(tls, folder):
    """The driver of a cluster on Spark, which has certificates of its own."""
    certificates = make_spark_certificates([HOST])
    driver = Driver(certificates, 1, print)
    driver.serve(Placement(1, 0, [HOST]))

    def join():
        own = ProcessId("worker", 0)
        connection = DriverConnection(
            (HOST, driver.port), certificates, own, "a:1", needs_addresses=True
        )
        with contextlib.closing(connection):
            assert connection.addresses()["worker"] == ["a:1"]

    yield Served(driver.port, lambda: repeat(join))
    driver.close()


LISTENERS = (ps, asynchronous_ps, chief, mesh, spark_driver)
ROWS = [
    pytest.param((listener, encrypts), id=f"{listener.__name__}-{'tls' if encrypts else 'plain'}")
    for listener in LISTENERS
    for encrypts in (False, True)
    if encrypts or listener is not spark_driver
]


@pytest.fixture(scope="module", name="certificates")
def _certificates(tmp_path_factory):
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl")
    hosts = ("IP:127.0.0.1", "DNS:one", "DNS:two")
    return make_certificates(tmp_path_factory.mktemp("certificates"), "authority", "all", hosts)


@pytest.fixture(name="served", params=ROWS)
def _served(request, certificates, tmp_path, few_descriptors):
    listener, encrypts = request.param
    if listener is mesh:
        request.getfixturevalue("native_library")
    with listener(certificates if encrypts else None, tmp_path) as served:
        yield served


@pytest.fixture(name="few_descriptors")
def _few_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = len(os.listdir("/proc/self/fd"))  # more than a training has, after other tests
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(LIMIT, own + LIMIT - 64), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def flood(port, callers=CALLERS):
    """Yields what floods a port, and goes on with it until the block ends if it is asked so."""
    command = [sys.executable, "-c", FLOOD, str(port), str(callers)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as flooding:

        def act(how="once"):
            flooding.stdin.write(f"{how}\n")
            assert flooding.stdout.readline() == "flooded\n"

        try:
            yield act
        finally:
            flooding.kill()


def assert_some_are_left():
    """Some descriptors are free."""
    with contextlib.ExitStack() as opened:
        for _ in range(OWN):
            opened.enter_context(open(os.devnull))


def test_a_flood_takes_neither_all_descriptors_nor_threads_and_keeps_no_worker_out(served):
    threads = threading.active_count()
    with flood(served.port) as flooded:
        flooded("go on")
        assert_some_are_left()
        assert threading.active_count() <= threads
        served.join()
        assert_some_are_left()


def test_a_worker_joins_after_a_lack_of_descriptors(served):
    with flood(served.port, FEW) as flooded:
        with contextlib.ExitStack() as opened:
            with contextlib.suppress(OSError):
                while True:
                    opened.enter_context(open(os.devnull))
            flooded()
        served.join()
        assert_some_are_left()


def test_a_worker_joins_after_a_lack_of_threads(served, monkeypatch):
    """As where a container's pids.max is reached: only this test's own threads start."""
    start, own = threading.Thread.start, threading.current_thread()

    def start_of_own(thread):
        if threading.current_thread() is not own:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start_of_own)
        with flood(served.port, FEW) as flooded:
            flooded()
            served.bother()
    served.join()
    assert_some_are_left()
