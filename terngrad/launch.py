"""Starts all processes of a training, on this machine or on several.

python -m terngrad.launch -n 4 train.py ARGUMENT...
python -m terngrad.launch --hosts a,b,c train.py ARGUMENT...
python -m terngrad.launch -n 4 -m package.train ARGUMENT...

The installed package also has it as the command terngrad-run. In each process terngrad.join()
finds the others. With --hosts a process starts on each listed host, through ssh, in this folder and
with this Python, which must be there too; a host that is listed twice has two. ssh must not ask for
a password. Without --ps the first host also needs the port 1000 above --port. --certificates names
a folder with ca.crt, HOST.crt and HOST.key on each host. --allow_insecure_network says that you
trust the network; it is not needed if the program gives join certificates for --ps.
--network_interface names the one that each process uses on its host; --hosts must then list names
or addresses of that network. With -n the processes share out the machine's GPUs, or those of
CUDA_VISIBLE_DEVICES: with as many processes as GPUs each has its own. A parameter server has none.

Each output line begins with the index of its worker. With --show N all lines of worker N are
printed, and of the others what they write to standard error, as tracebacks and warnings are.

If a process fails, a line names it. The others then have 3 s to end by themselves, are asked to
end, and are killed after 90 s. The exit status is that of the first process that failed by itself.
If that takes longer to end than others, a traceback or a status of its own shows that it failed.
Among several, one with a status other than 1 counts. A process that ends because of another one has
status 75, and so has this program if all of them ended so. Ctrl-C, SIGTERM and SIGHUP are passed on
to all workers, with the same deadline; the exit status is then 128 + the signal's number. Parameter
servers end after the workers. A second Ctrl-C kills all at once. A line names a killed worker, with
the step of its last checkpoint if it has printed that.

Parameter servers start on the hosts in turn and run the program up to its join. With --max_restarts
the death of a process does not end the others, whose loop must then let processes come and go, with
--ps or join(elastic=True).
Killed processes are started again, at most N in all, after pauses that grow from 1 s to a minute;
one with 5 runs in a row of less than 30 s is left out. So is one whose host is lost: it may still
run there. With --min_workers=M they wait while fewer than M are there, and end after the
elastic_wait_secs of join.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shlex
import signal
import sys
from collections.abc import Sequence

from terngrad.cluster import interfaces
from terngrad.cluster.addresses import CONTROL_PORT_ABOVE, LAST_PORT, host_and_port, reserved_ports
from terngrad.cluster.managed import launch_variables
from terngrad.launcher import gpus, hosts, processes, state
from terngrad.launcher.process import GRACE_SECS, Process
from terngrad.launcher.run import Run, StartError
from terngrad.launcher.terminal import (
    Output,
    Parser,
    Requests,
    end_program,
    prepare_log_folder,
    whole,
    with_log_files,
)
from terngrad.layout import MAX_NODES

_NOTICE_SECS = 3.0


def main(argv: Sequence[str]) -> int:
    """Runs the processes and returns the exit status."""
    options = _parse(argv)
    if options.status or options.stop:
        return _show_or_stop(options)
    requests = Requests()
    requests.listen()
    with contextlib.ExitStack() as reservations:
        try:
            run = Run(
                with_log_files(_processes(options, reservations), options.log_dir),
                requests,
                Output(requests),
                restarts=options.max_restarts or 0,
                tolerates_failures=options.max_restarts is not None,
                notice_secs=_NOTICE_SECS,
                relays=True,
                shown=options.show,
            )
            return run.run()
        except (StartError, OSError) as error:  # the latter without enough free ports
            sys.exit(f"launch: {error}")


def _show_or_stop(options: argparse.Namespace) -> int:
    """Shows or stops the processes of an earlier launcher; returns the exit status."""
    started = state.started_in(os.path.abspath(options.log_dir))
    if not started:
        sys.exit(f"launch: no process was started with --log_dir={options.log_dir}")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if options.stop:
        workers_then_ps = [
            [each for each in started if each.is_ps == is_ps] for is_ps in (False, True)
        ]
        found = [processes.stop(each, GRACE_SECS, over_ssh=True) for each in workers_then_ps]
    else:
        found = [processes.status(started, lines=1)]
    for answer in found:
        print("".join(f"{line}\n" for line in answer.lines), end="")
    return int(any(answer.problems or answer.unexpected for answer in found))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("python -m terngrad.launch", __doc__)
    add, last_port = parser.add_argument, LAST_PORT - CONTROL_PORT_ABOVE
    add("-n", type=whole(1, MAX_NODES), metavar="N", help="number of processes on this machine")
    add("--hosts", type=_host_names, metavar="A,B", help="one process on each, through ssh")
    add(
        "--ps", type=whole(0, MAX_NODES), default=0, metavar="N", help="number of parameter servers"
    )
    add("--max_restarts", type=whole(0), metavar="N", help="of killed processes, which come and go")
    add("--min_workers", type=whole(1), metavar="M", help="wait while fewer of them are there")
    add("--port", type=whole(1, last_port), help=f"first of each host's processes ({hosts.PORT})")
    add("--python", default=sys.executable, help="interpreter (default: this one)")
    add("--ssh", type=_words, help='command and options, such as "ssh -F FILE"')
    add("--certificates", metavar="DIR", help="encrypt with those that make_certs.sh makes")
    add("--allow_insecure_network", action="store_true", default=None, help="do not encrypt")
    add("--network_interface", metavar="NAME", help="of each host, such as eth1 (default: any)")
    add("--log_dir", metavar="DIR", default="", help="adds all lines to DIR/worker_0.log, ...")
    add("--status", action="store_true", help="only show the processes of --log_dir")
    add("--stop", action="store_true", help="only let the processes of --log_dir save and end")
    add("--show", type=whole(0), metavar="N", help="worker whose lines are all printed")
    rest = argparse.REMAINDER
    add("-m", dest="module", nargs=rest, help="module and its arguments")
    add("command", nargs=rest, metavar="PROGRAM", help="program and its arguments")
    options = parser.parse_args(argv)
    _check(parser, options)
    return options


def _host_names(text: str) -> list[str]:
    for name in text.split(","):
        if not name or name.startswith("-") or any(c.isspace() for c in name):
            raise argparse.ArgumentTypeError(
                f"has {name!r}; allowed are names of hosts, with commas"
            )
    return text.split(",")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends this program if its options do not fit together."""
    if options.status or options.stop:
        if options.status and options.stop:
            parser.error("needs --status or --stop, and not both")
        if not os.path.isdir(options.log_dir):
            parser.error("--status and --stop need --log_dir=DIR, the folder of a training's logs")
        return
    if (options.n is None) == (options.hosts is None):
        parser.error("needs -n or --hosts, and not both")
    for name in ("port", "ssh", "certificates", "allow_insecure_network", "network_interface"):
        if options.n and getattr(options, name) is not None:
            parser.error(f"--{name} needs --hosts: processes of this machine do not use it")
    workers = len(options.hosts or []) or options.n
    if options.min_workers and options.max_restarts is None:
        parser.error("--min_workers needs --max_restarts: without it the first loss ends all")
    if options.min_workers and options.min_workers > workers:
        allowed = f"allowed are 1 to {workers}, the number of workers"
        parser.error(f"--min_workers is {options.min_workers}; {allowed}")
    if options.show is not None and options.show >= workers:
        parser.error(f"--show is {options.show}; allowed are 0 to {workers - 1}, a worker")
    if options.command[:1] == ["--"]:
        del options.command[0]
        if options.command[:1] == ["-m"]:
            options.module = options.command[1:]
    if options.module:
        options.command = ["-m", *options.module]
    if not options.command:
        parser.error("needs a program, as train.py or -m package.train")
    program = options.command[0]
    if not options.module and options.n and not os.path.isfile(program):
        parser.error(f"no such program: {program}")
    try:
        options.log_dir = options.log_dir and prepare_log_folder(options.log_dir)
    except argparse.ArgumentTypeError as error:
        parser.error(f"--log_dir: {error}")


def _processes(options: argparse.Namespace, reservations: contextlib.ExitStack) -> list[Process]:
    """Returns the workers, one on each host, and servers on the hosts in turn.

    `reservations` keeps the ports of this machine for them.
    """
    names = options.hosts or [""] * options.n
    jobs = [("worker", rank) for rank in range(len(names))]
    jobs += [("ps", rank) for rank in range(options.ps)]
    places = [names[rank % len(names)] for _, rank in jobs]
    if options.hosts:
        first = options.port or hosts.PORT
        control_port = first + CONTROL_PORT_ABOVE
        machines = [name.rpartition("@")[2] for name in places]  # without the user
        ports = [first + machines[:i].count(machine) for i, machine in enumerate(machines)]
    else:
        control_port, *ports = reservations.enter_context(
            reserved_ports(len(jobs) + 1, "127.0.0.1")
        )
        machines = ["127.0.0.1"] * len(jobs)
    addresses = list(map(host_and_port, machines, ports))
    workers, servers = addresses[: len(names)], addresses[len(names) :]
    level = {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}
    installed = [] if options.hosts else gpus.found()
    found = []
    for (job, rank), name in zip(jobs, places, strict=True):
        label = f"{'ps ' if job == 'ps' else ''}{rank} {name}".strip()
        variables = level | launch_variables.variables(workers, rank, control_port, servers, job)
        if options.min_workers:
            variables[launch_variables.MIN_SIZE] = str(options.min_workers)
        if not name:
            is_ps = job == "ps"
            own = gpus.no_gpu(installed) if is_ps else gpus.variables(installed, rank, len(names))
            variables |= own
        command = [options.python, "-u", *options.command]
        process = Process(label, command, name, variables, is_ps=job == "ps")
        found.append(_over_ssh(process, options) if name else process)
    return found


def _over_ssh(process: Process, options: argparse.Namespace) -> Process:
    """Returns the ssh that runs a process on its host."""
    own = {
        "PYTHONPATH": os.environ.get("PYTHONPATH"),
        launch_variables.INSECURE: "1" if options.allow_insecure_network else "",
        launch_variables.CERTIFICATES: options.certificates,
        interfaces.VARIABLE: options.network_interface,
    }
    variables = process.environment | {name: value for name, value in own.items() if value}
    settings = [f"{name}={value}" for name, value in variables.items()]
    remote = [process.command[0], "-m", "terngrad.launcher.remote_command", *process.command]
    line = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(['env', *settings, *remote])}"
    command = hosts.ssh_command(process.host, line, options.ssh or ["ssh"])
    return dataclasses.replace(process, command=command, environment={})


if __name__ == "__main__":
    end_program(main(sys.argv[1:]))
