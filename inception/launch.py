"""Starts all workers of a distributed training on this machine.

python -m inception.launch [--OPTION=VALUE]... WORKERS PROGRAM FLAG...
python -m inception.launch 2 inception.mnist_distributed_train --data_dir=DIR --grad_bits=1

Each output line begins with the label of its worker. After Ctrl-C, SIGTERM, SIGHUP or a closed
output all workers save and end; the exit status is then 128 + the signal's number (SIGPIPE's for a
closed output). A second Ctrl-C kills them. Otherwise the exit status is that of the worker that
failed first, or 1 if it was killed. With --max_restarts=N a failed training restarts from its last
checkpoint, at most N times, after pauses that grow from 1 s to a minute, and not after 5 runs in a
row of less than 30 s. With --ps, or a program's --elastic, the loss of a process ends the others
only if their flags say so, and killed processes restart, at most N in all, with the same pauses for
each.

The workers share out the machine's GPUs, or those of CUDA_VISIBLE_DEVICES: with as many workers as
GPUs each has its own. A parameter server has none.

With --log_dir, `python -m terngrad.launch --log_dir=DIR --status` or `--stop` in another shell
shows or stops the processes, also if this launcher was killed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence

from inception import app
from inception.cluster.members import members, members_on_hosts
from inception.cluster.namespaces import BANDWIDTH, NamespaceNetwork
from inception.console import MODULES
from terngrad.cluster.addresses import reserved_ports
from terngrad.launcher import gpus, state
from terngrad.launcher.process import Process, Restarts
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

_SET_HERE = ("job_name", "task_id", "worker_hosts", "ps_hosts")
_OF_BANDWIDTH = """such as 100mbit: gives each process a network interface of its own with that
bandwidth (Linux, as root), to try how the training would go over such a network; or unshaped"""


def main(argv: Sequence[str]) -> int:
    """Runs the cluster and returns the exit status."""
    options = _parse(argv)
    requests = Requests()
    requests.listen()
    output = Output(requests)
    tolerant = options.ps > 0 or app.is_set("elastic", options.command[1:])
    restarts = Restarts(0 if tolerant else options.max_restarts)
    for attempt in itertools.count(1):
        restarts.note_start("training")
        with _network(options) as network, contextlib.ExitStack() as reservations:
            try:
                processes = _processes(options, network, reservations)
                run = Run(
                    processes,
                    requests,
                    output,
                    restarts=options.max_restarts,
                    tolerates_failures=tolerant,
                )
                status = run.run()
            except (StartError, OSError) as error:  # the latter without enough free ports
                sys.exit(f"launch: {error}")
        status = 1 if state.was_killed(status) else status
        if status == 0 or status > 128 or run.was_asked():  # done, or it was asked to end
            return status
        pause_secs, what = restarts.next_start("training")
        if pause_secs is None:
            if what:
                output.show(f"The training {what}.")
            return status
        which = f"Restart {attempt} of {options.max_restarts} in {pause_secs:g} s"
        output.show(f"{which}, from the last checkpoint if there is one.")
        if requests.wait(pause_secs, run.was_asked):
            return requests.events[0].status if requests.events else status


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("python -m inception.launch", __doc__)
    add = parser.add_argument
    add("--max_restarts", type=whole(0), default=0, metavar="N", help="see above")
    add(
        "--ps", type=whole(0, MAX_NODES), default=0, metavar="N", help="number of parameter servers"
    )
    add("--bandwidth", type=_bandwidth, metavar="RATE", help=_OF_BANDWIDTH)
    add(
        "--log_dir",
        type=prepare_log_folder,
        metavar="DIR",
        help="adds all lines to DIR/worker_0.log, ...",
    )
    add("words", nargs=argparse.REMAINDER, metavar="WORKERS PROGRAM FLAG")
    options = parser.parse_args(argv)
    if len(options.words) < 2:
        parser.error("needs the number of workers and a program")
    workers, *options.command = options.words
    try:
        options.workers = whole(1, MAX_NODES)(workers)
    except argparse.ArgumentTypeError as error:
        parser.error(f"WORKERS: {error}")
    if options.command[0].startswith("-"):
        own = "launch's own flags stand before WORKERS"
        parser.error(f"PROGRAM is {options.command[0]!r}; {own}")
    if options.command[0].endswith(".py"):
        other = "for a script of your own use terngrad-run (python -m terngrad.launch)"
        parser.error(f"PROGRAM is {options.command[0]!r}; allowed is the name of a module; {other}")
    module, *flags = options.command
    several = f"{module.removesuffix('train')}distributed_train"
    if module in MODULES and several in MODULES:
        parser.error(f"PROGRAM is {module}, which trains alone; take {several}")
    for flag in (flag.partition("=")[0] for flag in flags):
        if flag.startswith("-") and flag.lstrip("-") in _SET_HERE:
            by_hand = "leave it out, or start the processes by hand"
            parser.error(f"{flag}: this launcher sets it for each process; {by_hand}")
    return options


def _bandwidth(text: str) -> str:
    try:
        return BANDWIDTH.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}; it {error}") from None


@contextlib.contextmanager
def _network(options: argparse.Namespace) -> Iterator[NamespaceNetwork | None]:
    """Makes a network with a host for each process, where one is asked for."""
    if not options.bandwidth:
        yield None
        return
    try:
        with NamespaceNetwork(f"launch{os.getpid()}", options.workers + options.ps) as network:
            network.shape(options.bandwidth)
            yield network
    except ValueError as error:
        sys.exit(f"launch: --bandwidth={options.bandwidth}: {error}")


def _processes(
    options: argparse.Namespace,
    network: NamespaceNetwork | None,
    reservations: contextlib.ExitStack,
) -> list[Process]:
    """Returns the processes to start; `reservations` keeps this machine's ports for them."""
    if network:
        found = members_on_hosts(network.addresses, options.workers)
    else:
        ports = lambda count: reservations.enter_context(reserved_ports(count))
        found = members(options.workers, options.ps, ports)
    machine, processes = gpus.found(), []
    for member in found:
        command = [sys.executable, "-u", "-m", *options.command, *member.flags]
        if network:
            command = network.on_host(member.host, command)
        own = gpus.variables(machine, member.index, options.workers)  # workers are the first
        environment = network.environment if network else {}
        environment = environment | (gpus.no_gpu(machine) if member.is_ps else own)
        processes.append(Process(member.label, command, "", environment, member.is_ps))
    return with_log_files(processes, options.log_dir)


if __name__ == "__main__":
    end_program(main(sys.argv[1:]))
