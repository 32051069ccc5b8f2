"""install_test_tools.sh installs the missing tools that tests need."""

import os
import pathlib
import subprocess

import pytest

from terngrad.testing.limits import HANG_SECS

_SCRIPT = pathlib.Path(__file__).with_name("install_test_tools.sh")


@pytest.fixture
def run(tmp_path):
    """Runs the script with only the given programs on PATH; apt-get records its arguments."""

    def run(*programs, systemd=None, arguments=()):
        for program in programs:
            path = tmp_path / program
            path.write_text('#!/bin/bash\necho "$*" >> "${BASH_SOURCE%/*}/asked"\n')
            path.chmod(0o755)
        for needed in ("bash", "dirname", "basename"):
            path = tmp_path / needed
            path.symlink_to(f"/usr/bin/{needed}" if needed != "bash" else "/bin/bash")
        return subprocess.run(
            ["/bin/bash", _SCRIPT, *arguments],
            env={"PATH": str(tmp_path), "SYSTEMD": str(systemd or tmp_path / "none")},
            capture_output=True,
            text=True,
            timeout=HANG_SECS,
        )

    return run


def test_nothing_is_done_where_all_is_there(run, tmp_path):
    result = run("sshd", "ip", "tc", "java", "apt-get")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not (tmp_path / "asked").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_only_what_is_missing_is_installed(run, tmp_path):
    result = run("sshd", "ip", "java", "apt-get")
    assert result.returncode == 0, result.stderr
    assert "Installing iproute2 ..." in result.stdout
    update, install = (tmp_path / "asked").read_text().splitlines()
    assert update.startswith("update")
    assert install.split()[0] == "install" and install.split()[-1] == "iproute2"
    assert "openssh-server" not in install


def test_what_only_exhaustive_tests_need_is_asked_for(run):
    result = run("sshd", "ip", "tc", "java", "g++", "openssl", "scontrol", arguments=["--all"])
    assert result.returncode == 1
    packages = "make g++-aarch64-linux-gnu qemu-user-static"
    assert result.stderr == (
        f"install_test_tools.sh: needs {packages}; "
        f"on Debian or Ubuntu: sudo apt-get install -y {packages}\n"
    )


def test_without_apt_get_it_says_what_is_missing(run):
    result = run("ip", "tc", "java")
    assert result.returncode == 1
    assert result.stderr == (
        "install_test_tools.sh: needs openssh-server; "
        "on Debian or Ubuntu: sudo apt-get install -y openssh-server\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_no_service_is_begun_that_nobody_asked_for(run, tmp_path):
    result = run("ip", "tc", "java", "apt-get", systemd=tmp_path)
    assert result.returncode == 1
    assert "sshd would run as a service here; if you want that: apt-get install" in result.stderr
    assert not (tmp_path / "asked").exists()
