"""Command lines for other machines: what the shell there makes of them."""

import os
import subprocess

import pytest

from terngrad.launcher import hosts

FOLDER = "my 'copy', $HOME \"x\""


def run(line, home):
    """Runs a line as sshd does."""
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    return subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("workspace", [f"~/{FOLDER}", "{home}/" + FOLDER])
def test_a_module_runs_in_a_working_copy_whatever_its_path(tmp_path, workspace):
    (tmp_path / FOLDER / "scripts").mkdir(parents=True)
    (tmp_path / FOLDER / "scripts/common.sh").write_text("PYTHON=echo\n")
    (tmp_path / ".bashrc").write_text("exit 9\n")
    variables = {"A": "~/b c", "B": "'$HOME'"}
    line = hosts.module_line(workspace.format(home=tmp_path), "a.module", variables)
    done = run(line.replace(" -m a.module", ' "${PWD}|${A}|${B}"'), tmp_path)
    assert done.stdout == f"{tmp_path}/{FOLDER}|{tmp_path}/b c|'$HOME'\n", done.stderr


def test_a_host_without_the_working_copy_is_distinguished_from_one_that_fails(tmp_path):
    line = hosts.module_line(f"~/{FOLDER}", "a.module")
    done = run(line, tmp_path)
    missing = f"no such folder: {tmp_path}/{FOLDER}\n"
    assert (done.returncode, done.stderr) == (hosts.MISSING_STATUS, missing)
    (tmp_path / FOLDER).mkdir()
    done = run(line, tmp_path)
    missing = f"no such script: {tmp_path}/{FOLDER}/scripts/common.sh\n"
    assert (done.returncode, done.stderr) == (hosts.MISSING_STATUS, missing)


def test_the_users_own_options_of_ssh_win_and_a_host_is_never_an_option():
    words = hosts.ssh_command("me@a", "line", ["ssh", "-o", "ConnectTimeout=3"])
    assert words[:3] == ["ssh", "-o", "ConnectTimeout=3"]
    assert words[-3:] == ["--", "me@a", "line"]
    assert "BatchMode=yes" in words


def test_the_reason_is_the_last_line_that_says_something():
    assert hosts.last_line("a\nwhy \x1b[31m\x00\n \n", "none") == "why [31m"
    assert hosts.last_line("\n", "none") == "none"
