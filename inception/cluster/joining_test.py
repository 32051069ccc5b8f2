"""What a process checks before it is reached from other machines."""

import dataclasses
import time

import pytest

from inception.cluster.joining import join_config
from inception.flags.cluster import ClusterConfig
from terngrad.connect import certificates
from terngrad.library.join_config import Naming
from terngrad.testing.certificates import make_certificates


@pytest.fixture(scope="module", name="tls")
def _tls(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"), "ours", "ps")


def security(cluster):
    """Checks how a process may be reached; returns its certificates."""
    config = join_config(cluster)
    config.check()
    return config.tls


def cluster_of(tls, **changes):
    files = {f"tls_{name}": value for name, value in dataclasses.asdict(tls).items()}
    return ClusterConfig(worker_hosts=("127.0.0.1:2222", "127.0.0.1:2223"), **files | changes)


def test_certificates_that_fit_are_taken(tls):
    assert security(cluster_of(tls)) == tls


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "No such file"), ("12:ab\nxyz\n", "'xyz' is not a serial number")],
)
def test_law_10_a_file_of_revoked_certificates_that_cannot_be_read_is_named(
    tls, tmp_path, content, why
):
    path = tmp_path / "denied.txt"
    if content:
        path.write_text(content)
    with pytest.raises(ValueError, match=rf"--tls_deny={path}.*cannot be read: {why}"):
        security(cluster_of(tls, tls_deny=str(path)))


@pytest.mark.parametrize("flag", ["tls_ca", "tls_cert"])
def test_law_10_a_file_without_a_certificate_is_named(tls, tmp_path, flag):
    garbage = tmp_path / "garbage"
    garbage.write_text("nothing of the kind")
    with pytest.raises(ValueError, match=rf"--{flag}={garbage}.*there is no certificate in it"):
        security(cluster_of(tls, **{flag: str(garbage)}))


def test_law_10_a_key_of_another_certificate_is_named(tls, tmp_path):
    other = make_certificates(tmp_path, "theirs", "stranger")
    with pytest.raises(ValueError, match=rf"--tls_cert=.*or none for the key {other.key}"):
        security(cluster_of(tls, tls_key=other.key))


@pytest.mark.parametrize("years", [-30, -1, 1, 30])
def test_law_10_a_certificate_that_is_not_valid_by_this_clock_is_named(tls, monkeypatch, years):
    now = time.time() + years * 365 * 86400
    monkeypatch.setattr(certificates.time, "time", lambda: now)
    clock = time.strftime("%Y-%m-%d %H:%M", time.gmtime(now))
    dates = r"is valid from 20\d\d-\d\d-\d\d \d\d:\d\d to 20.* UTC"
    why = rf"--tls_cert={tls.cert}: {dates}; the clock of this machine says {clock}"
    with pytest.raises(ValueError, match=why):
        security(cluster_of(tls))


@pytest.mark.parametrize("flag", ["tls_ca", "tls_cert", "tls_key"])
def test_law_10_a_file_that_is_not_there_is_named(tls, tmp_path, flag):
    none = str(tmp_path / "none")
    with pytest.raises(ValueError, match=rf"--{flag}={none}.*cannot be read: No such file"):
        security(cluster_of(tls, **{flag: none}))


@pytest.mark.parametrize("job", ["ps", "worker"])
def test_law_10_without_certificates_a_ps_on_another_machine_is_refused(job):
    hosts = {"ps_hosts": ("192.0.2.1:2222",), "worker_hosts": ("192.0.2.2:2222",)}
    why = "192.0.2.1:2222 is not on this machine: needs --tls_ca, --tls_cert and --tls_key"
    with pytest.raises(ValueError, match=why):
        security(ClusterConfig(**hosts, job_name=job))


def test_law_10_without_certificates_an_all_reduce_between_machines_is_refused(tls):
    hosts = ("127.0.0.1:2222", "192.0.2.2:2222")
    why = "--worker_hosts=127.*: 192.0.2.2:2222 is not on this machine: needs --tls_ca, --tls_cert"
    with pytest.raises(ValueError, match=why):
        security(ClusterConfig(worker_hosts=hosts))
    assert security(ClusterConfig(worker_hosts=hosts[1:])) is None  # alone
    assert security(ClusterConfig(worker_hosts=hosts, allow_insecure_network=True)) is None
    files = {"tls_ca": tls.ca, "tls_cert": tls.cert, "tls_key": tls.key}
    assert security(ClusterConfig(worker_hosts=hosts, **files)) == tls


@pytest.mark.parametrize(
    ("argument", "value", "of_library", "of_program"),
    [
        ("hosts", ("a:1", "b:1"), "join: hosts: why", "flag --worker_hosts=a:1,b:1: why"),
        ("control_port", None, "join: control_port: why", "flag --control_port=-1: why"),
        ("engine", "mpi", "join: engine is 'mpi': why", "flag --variable_update=mpi: why"),
        ("tls.key", "/k", "join: tls: key is '/k': why", "flag --tls_key=/k: why"),
        ("asynchronous.snapshot", 3, "join: asynchronous: snapshot is 3: why", "--ps_snapshot=3: "),
        ("", None, "join: why", "why"),
    ],
)
def test_errors_name_the_arguments_of_join_or_the_flags_of_a_program(
    argument, value, of_library, of_program
):
    own = join_config(ClusterConfig(worker_hosts=("a:1",))).naming
    assert str(Naming().refuse(argument, value, "why")) == of_library
    assert of_program in str(own.refuse(argument, value, "why"))
