"""run_dist.sh, status_dist.sh and stop_dist.sh start, show and stop processes on their hosts only.

Two homes on this machine, each with a working copy, play two hosts, reached through a real sshd.
"""

import contextlib
import dataclasses
import getpass
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from terngrad.testing.addresses import free_ports
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import wait_for_files

_REPO = pathlib.Path(__file__).parents[1]
_COPY = "my tern,grad 'x' $HOME"  # the folder of a working copy in its home
_STOPPED = [
    "worker 0 (host-a:2224): ended by SIGTERM",
    "worker 1 (host-b:2224): ended by SIGTERM",
    "ps 0 (host-a:2222): ended by SIGTERM",
]
_HOSTS = {"host-a": "127.0.0.1", "host-b": "127.0.0.2"}
_SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.slow
exhaustive = pytest.mark.exhaustive


@dataclasses.dataclass
class _ScriptHosts:
    """Two hosts and the environment in which the scripts reach them."""

    homes: dict[str, pathlib.Path]
    near: pathlib.Path  # home of the user who runs the scripts
    ssh_config: pathlib.Path
    settings: dict[str, str]
    server: subprocess.Popen

    def run(self, script: str, *arguments: str, **settings) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", _REPO / "scripts" / script, *arguments],
            env=self.environment(**settings),
            capture_output=True,
            text=True,
            timeout=HANG_SECS,
            check=False,
        )

    def environment(self, **settings) -> dict[str, str]:
        own = {"PATH": os.environ["PATH"], "HOME": str(self.near), "SSH_CONFIG": self.ssh_config}
        return {key: str(value) for key, value in (own | self.settings | settings).items()}

    def start(self, **settings) -> str:
        result = self.run("run_dist.sh", **settings)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def is_untouched(self) -> bool:
        """Whether nothing was started on or copied to any host."""
        return not any((home / "tmp").exists() for home in self.homes.values()) and not any(
            (home / ".terngrad").exists() for home in self.homes.values()
        )


@pytest.fixture
def cluster(tmp_path, working_copy) -> Iterator[_ScriptHosts]:
    """A cluster of one ps on host-a and one worker on each host."""
    if not _SSHD:
        pytest.skip("there is no sshd (apt-get install openssh-server)")
    homes = {host: tmp_path / f"home of {host}" for host in _HOSTS}
    for home in homes.values():
        working_copy(home / _COPY)
        (home / "data, $1").mkdir()
    near = tmp_path / "near"
    near.mkdir()
    with _sshd(tmp_path, homes) as (server, port):
        settings = {
            "TERNGRAD_VENV": sys.prefix,
            "WORKSPACE": f"~/{_COPY}",
            "PS_HOSTS": "host-a:2222",
            "WORKER_HOSTS": "host-a:2224,host-b:2224",
            "DIST_CONFIG": near / "lists.sh",
            "STOP_SECS": "30",
        }
        (near / "lists.sh").write_text("[[ -v DATA_DIR ]] || DATA_DIR=('~/data, $1')\n")
        config = _client_config(tmp_path, dict.fromkeys(homes, port))
        probe = ["ssh", "-o", "BatchMode=yes", "-F", config, "host-a", "true"]
        answer = subprocess.run(probe, capture_output=True, text=True, check=False)
        if answer.returncode:
            pytest.skip(f"{getpass.getuser()} cannot log in to this machine: {answer.stderr}")
        yield _ScriptHosts(homes, near, config, settings, server)


@contextlib.contextmanager
def _sshd(
    folder: pathlib.Path, homes: dict[str, pathlib.Path]
) -> Iterator[tuple[subprocess.Popen, int]]:
    """Starts an sshd at a free port; each host is an address with its own home."""
    if os.getuid() == 0:
        with contextlib.suppress(OSError):
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    for key in ("server_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key]
        subprocess.run(command, check=True)
    port = free_ports(1)[0]
    lines = [
        f"Port {port}",
        f"HostKey {folder}/server_key",
        f"AuthorizedKeysFile {folder}/user_key.pub",
        "PidFile none",
        "StrictModes no",
        "PasswordAuthentication no",
    ]
    lines += [f"ListenAddress {address}" for address in _HOSTS.values()]
    for host, home in homes.items():
        lines += [f"Match LocalAddress {_HOSTS[host]}", f'SetEnv "HOME={home}"']
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    log = folder / "sshd.log"
    with open(log, "w") as output:
        command = [_SSHD, "-D", "-e", "-f", folder / "sshd_config"]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=output)
    try:
        deadline = time.monotonic() + HANG_SECS
        while log.read_text().count("Server listening on") < len(_HOSTS):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"sshd does not start here: {log.read_text()}")
            time.sleep(0.05)
        yield server, port
    finally:
        server.terminate()
        server.wait()


def _client_config(folder: pathlib.Path, ports: dict[str, int]) -> pathlib.Path:
    """Writes a configuration with which ssh reaches each host at its port."""
    server_key = (folder / "server_key.pub").read_text()
    (folder / "known_hosts").write_text("".join(f"{host} {server_key}" for host in ports))
    text = ""
    for host, port in ports.items():
        text += f"Host {host}\n  HostName {_HOSTS.get(host, '127.0.0.1')}\n  Port {port}\n"
        text += f"  HostKeyAlias {host}\n"
    path = folder / f"ssh_config_{len(list(folder.glob('ssh_config_*')))}"
    path.write_text(
        f"{text}Host *\n  User {getpass.getuser()}\n  IdentityFile {folder}/user_key\n"
        f"  IdentitiesOnly yes\n  IdentityAgent none\n  UserKnownHostsFile {folder}/known_hosts\n"
    )
    return path


def _is_alive(pid: int) -> bool:
    try:
        return ") Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def _await_notes(cluster: _ScriptHosts) -> None:
    """Waits until the three programs run and handle SIGTERM."""
    files = [cluster.homes["host-a"] / f"{name}.json" for name in ("ps_0", "worker_0")]
    wait_for_files(*files, cluster.homes["host-b"] / "worker_1.json")


@exhaustive
def test_hosts_are_reached_at_once_and_what_their_start_up_files_print_does_no_harm(cluster):
    for host, other in (("host-a", "host-b"), ("host-b", "host-a")):
        mark = shlex.quote(f"{cluster.near}/{host}")
        wait = f"until [[ -e {shlex.quote(f'{cluster.near}/{other}')} ]]; do sleep 0.1; done"
        (cluster.homes[host] / ".bashrc").write_text(f"touch {mark}; {wait}; printf '!welcome'\n")
    shown = cluster.start(TLS="False")
    assert "welcome" not in shown
    assert shown.count(": process ") == 3


def test_each_host_gets_its_own_key_only_and_its_processes_are_shown_and_stopped(cluster, noted):
    cluster.start()
    _await_notes(cluster)
    authority = cluster.near / ".terngrad/certs/ca.crt"
    for host, home in cluster.homes.items():
        folder = home / ".terngrad/certs"
        names = {"ca.crt", f"{host}.crt", f"{host}.key", "denied.txt"}
        assert {path.name for path in folder.iterdir()} == names
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
        assert folder.stat().st_mode & 0o777 == 0o700
        verify = ["openssl", "verify", "-CAfile", authority, "-verify_hostname", host]
        subprocess.run([*verify, folder / f"{host}.crt"], check=True)
        flags = noted(home, f"worker_{list(cluster.homes).index(host)}")["flags"]
        assert flags["--tls_ca"] == f"{folder}/ca.crt"
        assert flags["--tls_cert"] == f"{folder}/{host}.crt"
        assert flags["--tls_key"] == f"{folder}/{host}.key"
        assert flags["--tls_deny"] == f"{folder}/denied.txt"
    assert "--tls_ca" in noted(cluster.homes["host-a"], "ps_0")["flags"]
    assert cluster.run("status_dist.sh").stdout.count("running (process ") == 3
    assert cluster.run("stop_dist.sh").stdout.splitlines() == _STOPPED


@exhaustive
def test_certificates_of_the_hosts_own_are_used_as_they_are(cluster, noted):
    own = {"TLS_CA": "~/ca.pem", "TLS_CERT": "/etc/own.pem", "TLS_KEY": "/etc/own.key"}
    cluster.start(**own)
    _await_notes(cluster)
    flags = noted(cluster.homes["host-b"], "worker_1")["flags"]
    assert flags["--tls_ca"] == f"{cluster.homes['host-b']}/ca.pem"
    assert (flags["--tls_cert"], flags["--tls_key"]) == ("/etc/own.pem", "/etc/own.key")
    assert not (cluster.near / ".terngrad").exists()


@exhaustive
def test_what_does_not_end_is_killed_with_its_children(cluster, noted):
    script = cluster.homes["host-b"] / _COPY / "scripts/run_single_worker_cifarnet.sh"
    children = "sleep 1000 & echo $! > ~/child; trap '' TERM\n"
    script.write_text(script.read_text().replace("\n\n", f"\n\n{children}", 1))
    flags = {"WORKER_FLAGS": "--worker_1=deaf", "MAX_RESTARTS": "9"}
    cluster.start(TLS="False", EXPERIMENT_ID="try-1", **flags)
    _await_notes(cluster)
    home, train_dir = cluster.homes["host-b"], "tmp/cifar10_training_data/try-1_worker_1"
    (home / train_dir).mkdir(parents=True)
    for step in (271, 1170, 99):
        (home / train_dir / f"model.ckpt-{step}.index").touch()
    result = cluster.run("stop_dist.sh", STOP_SECS=2)
    assert result.returncode == 1
    killed = "worker 1 (host-b:2224): killed because it did not end within 2 s"
    killed += "; not saved since step 1170"
    assert killed in result.stdout
    assert result.stderr == f"stop_dist.sh: host-b: {killed}\n"
    assert not _is_alive(noted(home, "worker_1")["pid"])
    assert not _is_alive(int((home / "child").read_text()))
    assert "again" not in cluster.run("status_dist.sh", "--lines=100").stdout


@exhaustive
def test_a_host_whose_key_is_unknown_is_not_trusted(cluster, tmp_path):
    (tmp_path / "known_hosts").write_text("")
    result = cluster.run("run_dist.sh")
    assert result.returncode == 1
    assert "host-b cannot be reached (Host key verification failed.)" in result.stderr
    assert cluster.is_untouched()


@exhaustive
def test_a_folder_that_a_host_lacks_is_named_before_anything_starts(cluster):
    result = cluster.run("run_dist.sh", DATA_DIR="~,~/none")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    problem = f"worker 1 (host-b:2224): no such folder: {cluster.homes['host-b']}/none"
    assert f"host-b: {problem}" in line
    assert cluster.is_untouched()


@exhaustive
def test_an_interrupted_start_leaves_nothing_running(cluster):
    go = cluster.homes["host-a"] / "go"
    (cluster.homes["host-a"] / ".bashrc").write_text(  # delays the start, not the check before it
        "[[ ! -e ~/checked ]] || until [[ -e ~/go ]]; do sleep 0.1; done; touch ~/checked\n"
    )
    with subprocess.Popen(
        ["bash", _REPO / "scripts/run_dist.sh"],
        env=cluster.environment(TLS="False"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        wait_for_files(cluster.homes["host-b"] / "worker_1.json")
        os.killpg(process.pid, signal.SIGINT)
        errors = process.stderr.readline()
        go.touch()
        shown, rest = process.communicate(timeout=HANG_SECS)
    assert errors.startswith("run_dist.sh: interrupted; waits for host-a")
    assert (process.returncode, rest) == (
        1,
        "run_dist.sh: all processes were stopped again: interrupted\n",
    )
    assert shown.count(": ended by SIGTERM\n") == 3


@exhaustive
def test_a_host_that_is_lost_is_named_and_does_not_hold_up_the_others(cluster, tmp_path, noted):
    cluster.start(TLS="False")
    _await_notes(cluster)
    port = int(cluster.ssh_config.read_text().split("Port ")[1].split()[0])
    lost = {"SSH_CONFIG": _client_config(tmp_path, {"host-a": port, "host-b": free_ports(1)[0]})}

    logs = cluster.near / "logs"
    log = logs / "worker_1_host-b:2224.log"
    assert cluster.run("status_dist.sh", f"--fetch={logs}").returncode == 0
    before = log.read_bytes()
    status = cluster.run("status_dist.sh", f"--fetch={logs}", **lost)
    assert status.returncode == 1
    assert status.stdout.count("running (process ") == 2
    assert "host-b cannot be reached (ssh: " in status.stdout
    assert log.read_bytes() == before
    assert before.endswith(b"worker_1: step 10\rworker_1: step 20\n")
    (away,) = (cluster.homes["host-b"] / "tmp/terngrad_dist").glob("*worker_1*.log")
    away.unlink()
    status = cluster.run("status_dist.sh", f"--fetch={logs}")
    assert status.returncode == 1
    missing = f"its log could not be fetched ({away}: No such file or directory)"
    assert f"worker 1 (host-b:2224): {missing}" in status.stdout
    assert log.read_bytes() == before

    stop = cluster.run("stop_dist.sh", **lost)
    assert stop.returncode == 1
    (line,) = stop.stderr.splitlines()
    assert line.startswith("stop_dist.sh: processes may still run: host-b cannot be reached (ssh: ")
    assert not _is_alive(noted(cluster.homes["host-a"], "ps_0")["pid"])
    assert _is_alive(noted(cluster.homes["host-b"], "worker_1")["pid"])
    assert cluster.run("stop_dist.sh").returncode == 0
    assert not _is_alive(noted(cluster.homes["host-b"], "worker_1")["pid"])
