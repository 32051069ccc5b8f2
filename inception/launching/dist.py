"""Starts, shows and stops the processes of scripts/config_dist.sh on their hosts.

python inception/launching/dist.py NAME.sh [SETTING=ENTRY]... -- ARGUMENT...

NAME.sh is the script that calls this; its first lines tell what it does. The settings are in the
environment, except arrays: each of their entries is an argument SETTING=ENTRY.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from inception.launching.settings import Security, Settings, parsed_integer
from terngrad.launcher import hosts
from terngrad.launcher.fleet import Fleet
from terngrad.launcher.process import BYTES
from terngrad.launcher.run import Run
from terngrad.launcher.terminal import Output, Requests, end_program


def run(settings: Settings, arguments: Sequence[str]) -> None:
    """Starts all processes, or none; raises ValueError."""
    restarts = int(settings["MAX_RESTARTS"])
    for argument in arguments:
        name, _, text = argument.partition("=")
        if name != "--max_restarts":
            what = "for the rest edit config_dist.sh or set variables"
            raise ValueError(f"allowed is --max_restarts=N; {what}")
        restarts = parsed_integer(name, text)
    settings_of = {kind: settings.job_settings(kind) for kind in ("ps", "worker")}
    security = Security(settings)
    environment = lambda kind, host: settings_of[kind] | security.variables(host)
    fleet = Fleet(settings.processes(restarts, environment), settings.command)
    if problems := fleet.ask("check").problems:
        raise ValueError(f"nothing was started: {'; '.join(problems)}")
    folder = Path(os.path.expanduser(settings["CERTS_DIR"]))
    if security.makes_certificates:
        make = ["bash", f"{hosts.WORKSPACE}/scripts/make_certs.sh", str(folder), *fleet.hosts]
        if status := subprocess.run(make, check=False).returncode:
            sys.exit(status)  # it has printed the reason
    requests = Requests()
    requests.listen()
    fleet.watch = _watch(requests, fleet.hosts)
    started = fleet.ask("start", files=lambda host: security.files(host, folder))
    if requests.events:
        started.problems.append("interrupted")
    if started.problems:
        why = "; ".join(started.problems)
        if len(started.refused) == len(fleet.processes):
            raise ValueError(f"nothing was started: {why}")
        stopped = fleet.stop(int(settings["STOP_SECS"]), started.refused)
        _show(stopped.lines)
        where = f", except where {'; '.join(stopped.problems)}" if stopped.problems else ""
        which = "the started" if started.refused else "all"
        raise ValueError(f"{which} processes were stopped again{where}: {why}")
    _show(started.lines)
    watch = "Watch: bash scripts/status_dist.sh  Stop: bash scripts/stop_dist.sh"
    print(f"Experiment {settings['EXPERIMENT_ID']} runs. {watch}")


def _watch(requests: Requests, hosts: Sequence[str]) -> Callable[[Sequence[str]], None]:
    """Returns what a fleet calls during a start: the first request is answered, a second one ends.

    Args:
      requests: those so far.
      hosts: where processes may run.
    """
    answered = []

    def watch(late: Sequence[str]) -> None:
        if requests.events and not answered:
            answered.append(requests.events[0])
            _tell(f"interrupted; waits for {', '.join(late)}; a second Ctrl-C ends this at once")
        # SIGHUP may come twice by itself.
        if sum(event.status != 128 + signal.SIGHUP for event in requests.events) > 1:
            _tell(f"processes may still run on {', '.join(hosts)}; stop_dist.sh stops them")
            os._exit(1)  # threads wait for the hosts

    return watch


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be closed
        print(f"run_dist.sh: {line}", file=sys.stderr, flush=True)


def status(settings: Settings, arguments: Sequence[str]) -> None:
    """Shows the states of the processes; ends with 1 if one has failed, raises ValueError."""
    lines, folder = 3, ""
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "--lines":
            lines = parsed_integer(name, value)
        elif name == "--fetch" and value:
            folder = value
        else:
            raise ValueError(f"allowed are --lines=N and --fetch=DIR, got {argument!r}")
    try:
        if folder:
            os.makedirs(folder, exist_ok=True)
    except OSError:
        raise ValueError(f"cannot make the folder {folder}") from None
    fleet = Fleet(settings.processes(), settings.command)
    found = fleet.ask("status", lines=lines, with_logs=bool(folder))
    for process in fleet.processes:
        if process.label in found.logs:
            path = Path(folder, f"{Path(process.state).stem}.log")
            try:
                path.with_suffix(".log.new").write_bytes(found.logs[process.label].encode(BYTES))
                path.with_suffix(".log.new").replace(path)
            except OSError:
                found.problems.append(f"cannot write {path}")
    _show([*found.lines, *found.problems, *([f"Logs: {folder}"] if folder else [])])
    if found.problems or found.unexpected:
        sys.exit(1)


def stop(settings: Settings, arguments: Sequence[str]) -> None:
    """Stops the processes; raises ValueError if one was killed or may still run."""
    if arguments:
        what = "edit config_dist.sh or set variables in the environment"
        raise ValueError(f"takes no arguments; {what}")
    fleet = Fleet(settings.processes(), settings.command)
    found = fleet.stop(int(settings["STOP_SECS"]))
    _show(found.lines)
    may_run = [f"processes may still run: {'; '.join(found.problems)}"] if found.problems else []
    if may_run or found.unexpected:
        raise ValueError("; ".join([*found.unexpected, *may_run]))


def _run_here(settings: Settings, arguments: Sequence[str]) -> None:
    """Runs all processes on this machine, shows their lines and ends with their status."""
    if arguments:
        raise ValueError("takes no arguments; set variables in the environment")
    requests = Requests()
    requests.listen()
    processes = [
        dataclasses.replace(
            process,
            label=process.label.partition(" (")[0],
            command=["bash", f"{hosts.WORKSPACE}/{process.command[1]}", *process.command[2:]],
            host="",
            log="",
            state="",
        )
        for process in sorted(settings.processes(), key=lambda process: process.is_ps)
    ]
    end_program(Run(processes, requests, Output(requests), notice_secs=0.0).run())


_ACTIONS = {
    "run_dist.sh": run,
    "run_dist_cifar10.sh": _run_here,
    "status_dist.sh": status,
    "stop_dist.sh": stop,
}


def _show(lines: Sequence[str]) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader may be head
    print("".join(f"{line}\n" for line in lines), end="", flush=True)


def main(words: Sequence[str]) -> None:
    """Runs the action of a script; ends in one line if that fails."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    script, *entries = words[: words.index("--")]
    arrays: dict[str, list[str]] = {}
    for entry in entries:
        name, _, text = entry.partition("=")
        arrays.setdefault(name, []).append(text)
    try:
        _ACTIONS[script](Settings(os.environ, arrays), words[words.index("--") + 1 :])
    except ValueError as error:
        sys.exit(f"{script}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
