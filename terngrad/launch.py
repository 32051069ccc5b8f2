"""Starts all processes of a training, on this machine or on several.

python -m terngrad.launch -n 4 train.py ARGUMENT...
python -m terngrad.launch --hosts a,b,c train.py ARGUMENT...
python -m terngrad.launch -n 4 -m package.train ARGUMENT...

An installed package has it as the command terngrad-run, too.

In each process terngrad.join() finds the others. With --hosts a process starts on each host that is
listed, through ssh, in this folder and with this Python, which must be there too; a host that is
listed twice has two. ssh must not ask for a password.

Each output line begins with the index of its worker. All are printed, since a launcher cannot know
which lines matter. --show 0 prints those of worker 0, and of the others only what they write to
standard error, as tracebacks and warnings are. --log_dir adds the lines of each process to a file.

If a process fails, it is named; the others may end by themselves for 3 s, are then asked to end,
and killed after 90 s. The exit status is that of the first that failed by itself, also if it has
shown a traceback or has a status of its own and takes longer to end; among several, one with a
status other than 1 counts. A process that ends because of another has status 75, and so has this
one if all ended so. Ctrl-C, SIGTERM and SIGHUP are passed on to all workers, with the same
deadline; the exit status is then 128 + the signal's number. Parameter servers end after them. A
second Ctrl-C kills all at once. A worker that is killed is named, with the step of its last
checkpoint where it has told that.

With --ps=P --max_restarts=N the death of a process does not end the others, whose loop must then
let processes come and go. Killed processes are started again, at most N in all, after pauses that
grow from 1 s to a minute; one with 5 runs in a row of less than 30 s is left out.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from terngrad.cluster.addresses import host_and_port
from terngrad.cluster.channel import CONTROL_PORT_ABOVE, LAST_PORT
from terngrad.cluster.managed import launch
from terngrad.cluster.ports import free_ports
from terngrad.launcher import hosts, processes
from terngrad.launcher.run import GRACE_SECS, Process, Run, StartError, make_log_folder, with_log
from terngrad.launcher.terminal import Output, Requests, end_program

_NOTICE_SECS = 3.0
# sshd drops some of more than ten connections of one moment that are not logged in yet.
_LOGINS_AT_ONCE = 8
_LOGIN_PAUSE_SECS = 0.5


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Ends in one line."""
        sys.exit(f"launch: {message}; --help shows how")


def main(argv: Sequence[str]) -> int:
    """Runs the processes and returns the exit status."""
    arguments = _parse(argv)
    if arguments.status or arguments.stop:
        return _earlier(arguments)
    requests = Requests()
    requests.listen()
    command = [arguments.python, "-u", *arguments.command]
    if arguments.hosts:
        more = {launch.INSECURE: "1"} if arguments.allow_insecure_network else {}
        more |= {launch.CERTIFICATES: arguments.certificates} if arguments.certificates else {}
        places = _places(arguments.hosts, arguments.ps, arguments.port)
        members = _on_hosts(places, arguments.port, command, arguments.ssh or "ssh", more)
    else:
        members = _on_this_machine(arguments.n, arguments.ps, command)
    show, workers = arguments.show, len(arguments.hosts or []) or arguments.n
    members = [
        dataclasses.replace(
            with_log(member, arguments.log_dir, workers), is_shown=show in (None, member.index)
        )
        for member in members
    ]
    run = Run(
        members,
        arguments.max_restarts or 0,
        requests,
        Output(requests),
        notice_secs=_NOTICE_SECS,
        relays=True,
        is_elastic=arguments.max_restarts is not None,
    )
    try:
        return run.run()
    except StartError as error:
        sys.exit(f"launch: {error}")


def _earlier(arguments: argparse.Namespace) -> int:
    """Shows or stops what an earlier launcher started; returns the exit status."""
    folder = os.path.abspath(arguments.log_dir)
    jobs = processes.started_in(folder)
    if not jobs:
        sys.exit(f"launch: no process was started with --log_dir={arguments.log_dir}")
    if arguments.stop:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        servers = [[job for job in jobs if job.is_ps == is_ps] for is_ps in (False, True)]
        found = [processes.stop(each, GRACE_SECS, folder) for each in servers]
    else:
        found = [processes.status(jobs, 1, folder)]
    for answer in found:
        print("".join(f"{line}\n" for line in answer.lines), end="")
    return int(any(answer.problems or answer.ended for answer in found))


def _whole(text: str) -> int:
    if not text.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}; allowed are whole numbers")
    return int(text)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser("python -m terngrad.launch", description=__doc__, formatter_class=_Help)
    parser.add_argument("-n", type=_whole, metavar="N", help="number of processes on this machine")
    parser.add_argument(
        "--ps",
        type=_whole,
        default=0,
        metavar="N",
        help="exchange through N parameter servers, which run the program up to its join; with "
        "--hosts they start on the hosts in turn, beginning with the first",
    )
    parser.add_argument(
        "--max_restarts",
        type=_whole,
        metavar="N",
        help="with --ps: killed processes do not end the others, and at most N are started again",
    )
    parser.add_argument("--hosts", metavar="A,B,C", help="one process on each, through ssh")
    parser.add_argument(
        "--port",
        type=_whole,
        help="with --hosts: first port of each host's processes; without parameter servers the "
        f"first host also needs the one {CONTROL_PORT_ABOVE} above (default: {hosts.PORT}); "
        "processes of -n take free ports",
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter (default: this one)")
    parser.add_argument("--ssh", help='with --hosts: command and options, such as "ssh -F FILE"')
    parser.add_argument(
        "--certificates",
        metavar="DIR",
        help="with --hosts: encrypt with DIR/ca.crt, DIR/HOST.crt and DIR/HOST.key, which "
        "scripts/make_certs.sh makes; each host needs its own",
    )
    parser.add_argument(
        "--allow_insecure_network",
        action="store_true",
        help="with --hosts: gradients travel between the hosts without encryption; not needed if "
        "the program gives join certificates for parameter servers",
    )
    parser.add_argument(
        "--log_dir",
        metavar="DIR",
        default="",
        help="add all lines of each process to a file in DIR: worker_0.log, ps_0.log, ...",
    )
    parser.add_argument(
        "--status",
        action="store_true",
        help="only show whether the processes with a log in --log_dir run, and their last lines",
    )
    parser.add_argument(
        "--stop",
        action="store_true",
        help="only let the processes that have a log in --log_dir save and end, also if their "
        "launcher was killed",
    )
    parser.add_argument(
        "--show",
        type=_whole,
        metavar="N",
        help="print all lines of worker N only, and of the others their standard error "
        "(default: all lines of all)",
    )
    rest = argparse.REMAINDER
    parser.add_argument("-m", dest="module", nargs=rest, help="module and its arguments")
    parser.add_argument("command", nargs=rest, metavar="PROGRAM", help="program and its arguments")
    arguments = parser.parse_args(argv)
    _check(parser, arguments)
    return arguments


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows the docstring as it is."""


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Ends this program if its arguments are wrong."""
    if arguments.status or arguments.stop:
        if arguments.status and arguments.stop:
            parser.error("needs --status or --stop, and not both")
        if not arguments.log_dir or not os.path.isdir(arguments.log_dir):
            parser.error("--status and --stop need --log_dir=DIR, the folder of a training's logs")
        return
    if (arguments.n is None) == (arguments.hosts is None):
        parser.error("needs -n or --hosts, and not both")
    if arguments.hosts is None and arguments.n < 1:
        parser.error(f"-n is {arguments.n}; allowed are whole numbers of 1 and more")
    if arguments.ps < 0:
        parser.error(f"--ps is {arguments.ps}; allowed are 0 and more")
    if arguments.max_restarts is not None and (arguments.max_restarts < 0 or not arguments.ps):
        given = f"--max_restarts is {arguments.max_restarts}"
        parser.error(f"{given}; allowed are 0 and more, with --ps=1 or more")
    for name in ("port", "ssh", "certificates", "allow_insecure_network"):
        value = getattr(arguments, name)
        if arguments.hosts is None and value is not None and value is not False:
            parser.error(f"--{name} needs --hosts: processes of this machine do not use it")
    if arguments.hosts is not None:
        arguments.hosts = arguments.hosts.split(",")
        for host in arguments.hosts:
            if not host or host.startswith("-") or any(c.isspace() for c in host):
                parser.error(f"--hosts has {host!r}; allowed are names of hosts, with commas")
        arguments.port = hosts.PORT if arguments.port is None else arguments.port
        most = LAST_PORT - CONTROL_PORT_ABOVE
        if not 0 < arguments.port <= most:
            parser.error(f"--port is {arguments.port}; allowed are 1 to {most}")
    workers = len(arguments.hosts or []) or arguments.n
    if arguments.show is not None and not 0 <= arguments.show < workers:
        parser.error(f"--show is {arguments.show}; allowed are 0 to {workers - 1}, a worker")
    try:
        if arguments.log_dir:
            make_log_folder(arguments.log_dir)
    except ValueError as error:
        parser.error(str(error))
    try:
        shlex.split(arguments.ssh or "")
    except ValueError as error:
        parser.error(f"--ssh is {arguments.ssh!r}: {error}")
    if arguments.command[:1] == ["--"]:
        del arguments.command[0]
        if arguments.command[:1] == ["-m"]:
            arguments.module = arguments.command[1:]
    if arguments.module:
        arguments.command = ["-m", *arguments.module]
    if not arguments.command:
        parser.error("needs a program, as train.py or -m package.train")
    program = arguments.command[0]
    if not arguments.module and not arguments.hosts and not os.path.isfile(program):
        parser.error(f"no such program: {program}")


class _Place(NamedTuple):
    """Where a process runs: job, index within the job, name of the host for ssh, HOST:PORT."""

    job: str
    rank: int
    name: str
    address: str

    @property
    def label(self) -> str:
        """First words of its output lines."""
        own = self.rank if self.job == "worker" else f"ps {self.rank}"
        return f"{own} {self.name}".strip()


def _on_this_machine(count: int, servers: int, command: Sequence[str]) -> list[Process]:
    control, *ports = free_ports(count + servers + 1, "127.0.0.1")
    jobs = [("worker", i) for i in range(count)] + [("ps", i) for i in range(servers)]
    places = [_Place(*job, "", f"127.0.0.1:{p}") for job, p in zip(jobs, ports, strict=True)]
    return [
        Process(
            i, place.label, command, _variables(places, place, control), is_ps=place.job == "ps"
        )
        for i, place in enumerate(places)
    ]


def _places(names: Sequence[str], servers: int, port: int) -> list[_Place]:
    """Returns a worker on each host, and servers on the hosts in turn."""
    jobs = [("worker", i, name) for i, name in enumerate(names)]
    jobs += [("ps", i, names[i % len(names)]) for i in range(servers)]
    used: collections.Counter[str] = collections.Counter()
    places = []
    for job, i, name in jobs:
        host = name.rpartition("@")[2]  # without the user
        places.append(_Place(job, i, name, host_and_port(host, port + used[name])))
        used[name] += 1
    return places


def _on_hosts(
    places: Sequence[_Place],
    port: int,
    command: Sequence[str],
    ssh: str,
    more: Mapping[str, str] = MappingProxyType({}),
) -> list[Process]:
    """Returns processes on other hosts; `more` are further variables of their environments."""
    members: list[Process] = []
    logins: collections.Counter[str] = collections.Counter()
    for i, place in enumerate(places):
        variables = _variables(places, place, port + CONTROL_PORT_ABOVE) | dict(more)
        if path := os.environ.get("PYTHONPATH"):
            variables |= {"PYTHONPATH": path}
        words = hosts.over_ssh(place.name, _remote(command, variables), shlex.split(ssh))
        host = place.name.rpartition("@")[2]
        pause_secs = _LOGIN_PAUSE_SECS if logins[host] >= _LOGINS_AT_ONCE else 0.0
        logins[host] += 1
        is_ps = place.job == "ps"
        member = Process(i, place.label, words, is_ps=is_ps, is_remote=True, host=place.name)
        members.append(dataclasses.replace(member, pause_secs=pause_secs))
    return members


def _variables(places: Sequence[_Place], own: _Place, control_port: int) -> dict[str, str]:
    """Returns the variables of a process' environment."""
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
    workers, ps_hosts = (
        [place.address for place in places if place.job == job] for job in ("worker", "ps")
    )
    roles = launch.variables(workers, own.rank, control_port, ps_hosts, own.job)
    return {"TF_CPP_MIN_LOG_LEVEL": level} | roles


def _remote(command: Sequence[str], variables: dict[str, str]) -> str:
    """Returns the line that a shell on another host runs."""
    settings = [f"{name}={value}" for name, value in variables.items()]
    words = ["env", *settings, command[0], "-m", "terngrad.launcher.attended", *command]
    return f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}"


if __name__ == "__main__":
    end_program(main(sys.argv[1:]))
