"""Detached processes on several hosts: requests go to all hosts at once."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from typing import Any

from terngrad.launcher import hosts
from terngrad.launcher.process import MARK, Answer, Process

_POLL_SECS = 0.1
_MARK_LINE = f"{MARK}\n".encode()


class Fleet:
    """Processes on hosts, which an agent starts, shows and stops there.

    Attributes:
      processes: all processes.
      hosts: each host once.
      watch: is called again and again with the hosts that have not answered yet.
    """

    def __init__(
        self, processes: Sequence[Process], command: Callable[[str], Sequence[str]]
    ) -> None:
        """Starts nothing; `command` returns the command that runs the agent on a host."""
        self.processes = processes
        self.hosts = list(dict.fromkeys(process.host for process in processes))
        self._command = command
        self.watch: Callable[[Sequence[str]], None] = lambda late: None

    def stop(self, secs: float, spared: Collection[str] = ()) -> Answer:
        """Stops the workers, then the servers, which workers may need to save.

        Args:
          secs: time for a process to save.
          spared: labels of processes that go on.
        """
        own = [process for process in self.processes if process.label not in spared]
        jobs = [[process for process in own if process.is_ps == is_ps] for is_ps in (False, True)]
        return _joined([self.ask("stop", job, secs=secs) for job in jobs])

    def ask(
        self,
        what: str,
        processes: Sequence[Process] | None = None,
        files: Callable[[str], Mapping[str, str]] | None = None,
        **request: Any,
    ) -> Answer:
        """Asks all hosts at once; problems then name their host.

        Args:
          what: function of `terngrad.launcher.processes`.
          processes: about which; None = all.
          files: returns texts for a host, by path there.
          request: further arguments of the function.
        """
        asked: dict[str, list[Process]] = {}
        for process in self.processes if processes is None else processes:
            asked.setdefault(process.host, []).append(process)

        def ask(host: str) -> Answer:
            own = [dataclasses.asdict(process) for process in asked[host]]
            texts = {"files": files(host)} if files else {}
            return self._ask(host, json.dumps({"do": what, "processes": own, **request, **texts}))

        with futures.ThreadPoolExecutor(len(self.hosts)) as pool:
            answers = {host: pool.submit(ask, host) for host in asked}
            while late := [host for host, answer in answers.items() if not answer.done()]:
                self.watch(late)
                futures.wait(answers.values(), _POLL_SECS)
        return _joined([answer.result() for answer in answers.values()])

    def _ask(self, host: str, request: str) -> Answer:
        # Files, since a connection that ssh keeps for later would keep pipes open.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                done = subprocess.run(
                    self._command(host),
                    input=f"{request}\n".encode(),
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,  # Ctrl-C must not interrupt a host in its work
                    check=False,
                )
            except OSError as error:  # there is no ssh
                return _unreachable(host, f"{error.filename}: {error.strerror}")
            output.seek(0)
            errors.seek(0)
            before, mark, text = output.read().partition(_MARK_LINE)
            if not mark or done.returncode:  # an account may end with success, and run nothing
                said = (before + errors.read()).decode(errors="replace")
                why = hosts.last_line(said, "no reason given")
                if done.returncode == hosts.MISSING_STATUS:
                    return Answer(problems=[f"{host}: {why}"])
                return _unreachable(host, why)
        try:
            answer = Answer(**json.loads(text))
        except (ValueError, TypeError):
            return _unreachable(host, "its working copy is of another version")
        cleaned = lambda texts, name="": [
            f"{name}{hosts.without_control_characters(each)}" for each in texts
        ]
        named = lambda texts: cleaned(texts, f"{host}: ")
        own = {process.label for process in self.processes if process.host == host}
        return Answer(
            cleaned(answer.lines),
            named(answer.problems),
            named(answer.unexpected),
            [label for label in answer.refused if label in own],
            {label: answer.logs[label] for label in own & answer.logs.keys()},
        )


def _unreachable(host: str, why: str) -> Answer:
    return Answer(problems=[f"{host} cannot be reached ({why})"])


def _joined(answers: Sequence[Answer]) -> Answer:
    joined = Answer()
    for answer in answers:
        joined.lines += answer.lines
        joined.problems += [text for text in answer.problems if text not in joined.problems]
        joined.unexpected += answer.unexpected
        joined.refused += answer.refused
        joined.logs |= answer.logs
    return joined
