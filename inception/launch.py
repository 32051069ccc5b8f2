"""Starts all workers of a distributed training on this machine.

python -m inception.launch [--OPTION=VALUE]... WORKERS PROGRAM FLAG...
python -m inception.launch 2 inception.mnist_distributed_train --data_dir=DIR --grad_bits=1

Each output line begins with the label of its worker. After Ctrl-C, SIGTERM, SIGHUP or a closed
output all workers save and end; the exit status is then 128 + the signal's number (SIGPIPE's for a
closed output). A second Ctrl-C kills them. Otherwise the exit status is that of the worker that
failed first. With --max_restarts=N a failed training restarts from its last checkpoint, at most N
times, after pauses that grow from 1 s to a minute, and not after 5 runs in a row of less than 30 s.
With --ps=N the workers exchange through N parameter servers, which start and end with
them. The loss of a process then ends the others only if their flags say so, and --max_restarts=N
restarts killed processes, at most N in all, with the same pauses for each; one with 5 such runs in
a row is left out.

With --bandwidth=100mbit each process has a network interface of its own with that bandwidth, to try
how the training would go over such a network (Linux, as root). "unshaped" sets no limit.

With --log_dir=DIR the lines of each process are added to a file, too: worker_0.log, ps_0.log, ...
In another shell `python -m terngrad.launch --log_dir=DIR --status` or `--stop` then shows or stops
the processes, also if this launcher was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import sys
from collections.abc import Iterator, Sequence

from inception.cluster.members import Member, members, members_on_hosts
from inception.cluster.namespaces import BANDWIDTH, Network
from terngrad.launcher.restarts import MOST_IN_A_ROW, SHORT_SECS, Restarts
from terngrad.launcher.run import Process, Run, StartError, make_log_folder, with_log
from terngrad.launcher.terminal import Output, Requests, end_program


@dataclasses.dataclass
class _Arguments:
    workers: int
    command: list[str]
    max_restarts: int = 0
    ps: int = 0
    bandwidth: str = ""
    log_dir: str = ""


def main(argv: Sequence[str]) -> int:
    """Runs the cluster and returns the exit status."""
    arguments = _parse(argv)
    requests = Requests()
    requests.listen()
    output = Output(requests)
    restarts = Restarts(0 if arguments.ps else arguments.max_restarts)
    for attempt in itertools.count(1):
        restarts.begun("training")
        with _network(arguments) as network:
            if network:
                processes = members_on_hosts(network.addresses, arguments.workers)
            else:
                processes = members(arguments.workers, arguments.ps)
            started = [_process(member, arguments.command, network) for member in processes]
            folder, workers = arguments.log_dir, arguments.workers
            run = Run(
                [with_log(process, folder, workers) for process in started],
                arguments.max_restarts,
                requests,
                output,
            )
            try:
                status = run.run()
            except StartError as error:
                sys.exit(f"launch: {error}")
        if status == 0 or status > 128 or run.asked:  # done, or it was asked to end
            return status
        if (pause_secs := restarts.pause_secs("training")) is None:
            if restarts.is_left_out("training") and arguments.max_restarts:
                runs = f"{MOST_IN_A_ROW} runs of less than {SHORT_SECS:g} s"
                output.show(f"The training is not started again after {runs}.")
            return status
        which = f"Restart {attempt} of {arguments.max_restarts} in {pause_secs:g} s"
        output.show(f"{which}, from the last checkpoint.")
        if requests.wait(pause_secs):
            return requests.events[0].status


def _process(member: Member, command: Sequence[str], network: Network | None) -> Process:
    words = [sys.executable, "-u", "-m", *command, *member.flags]
    environment = {}
    if network:
        words, environment = network.on_host(member.host, words), network.environment
    return Process(member.index, member.label, words, environment, member.is_ps)


def _parse(argv: Sequence[str]) -> _Arguments:
    rest = list(argv)
    if rest[:1] in (["--help"], ["-h"]):
        print(__doc__)
        sys.exit(0)
    options = {
        "--max_restarts": lambda text: _whole_number(text, "--max_restarts", 0),
        "--ps": lambda text: _whole_number(text, "--ps", 0),
        "--bandwidth": _bandwidth,
        "--log_dir": _log_dir,
    }
    given: dict[str, int | str] = {}
    while rest and (name := rest[0].partition("=")[0]) in options:
        text = rest.pop(0).partition("=")[2] or (rest.pop(0) if rest else "")
        given[name.removeprefix("--")] = options[name](text)
    if len(rest) < 2:
        sys.exit(f"launch: needs the number of workers and a program\n{__doc__.splitlines()[2]}")
    if rest[1].startswith("-"):
        sys.exit(f"launch: PROGRAM is {rest[1]!r}; launch's own flags stand before WORKERS")
    return _Arguments(_whole_number(rest[0], "WORKERS", 1), rest[1:], **given)


@contextlib.contextmanager
def _network(arguments: _Arguments) -> Iterator[Network | None]:
    """Makes a network with a host for each process, where one is asked for."""
    if not arguments.bandwidth:
        yield None
        return
    size = arguments.workers + arguments.ps
    try:
        with Network(f"launch{os.getpid()}", size) as network:
            network.shape(arguments.bandwidth)
            yield network
    except ValueError as error:
        sys.exit(f"launch: --bandwidth={arguments.bandwidth}: {error}")


def _log_dir(text: str) -> str:
    try:
        make_log_folder(text)
    except ValueError as error:
        sys.exit(f"launch: {error}")
    return text


def _bandwidth(text: str) -> str:
    try:
        return BANDWIDTH.parse(text)
    except ValueError as error:
        sys.exit(f"launch: --bandwidth is {text!r}; it {error}")


def _whole_number(text: str, name: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        sys.exit(f"launch: {name} is {text!r}; allowed are whole numbers of {least} and more")
    return int(text)


if __name__ == "__main__":
    end_program(main(sys.argv[1:]))
