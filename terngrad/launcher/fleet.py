"""Processes on several hosts that go on without their launcher: all hosts are asked at once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from terngrad.launcher import hosts
from terngrad.launcher.protocol import BYTES, MARK, Answer, Job

_MARK_LINE = f"{MARK}\n".encode()


class HostError(ValueError):
    """A host cannot do what it was asked; the message says why."""


class UnreachableError(HostError):
    """A host cannot be asked."""


class Fleet:
    """Processes on hosts, which an agent starts, shows and stops there.

    Attributes:
      jobs: all processes.
      hosts: each host once.
    """

    def __init__(self, jobs: Sequence[Job], command: Callable[[str], Sequence[str]]) -> None:
        """Starts nothing; `command` returns the command that runs the agent on a host."""
        self.jobs = jobs
        self.hosts = list(dict.fromkeys(job.host for job in jobs))
        self._command = command

    def stop(self, secs: float) -> Answer:
        """Stops the workers, then the servers, which workers may need to save."""
        found = _joined(
            self.ask("stop", [job for job in self.jobs if job.is_ps == servers], secs=secs)
            for servers in (False, True)
        )
        found.problems = list(dict.fromkeys(found.problems))  # a host may be lost to both
        return found

    def fetch(self, folder: Path) -> list[str]:
        """Copies all logs into a folder, each whole or not at all; returns what went wrong."""

        def fetch(host: str) -> list[str]:
            jobs = [job for job in self.jobs if job.host == host]
            try:
                answer = self._run(host, {"do": "logs"}, jobs)
            except HostError as error:
                return [f"{job.label}: its log could not be fetched ({error})" for job in jobs]
            problems = list(map(hosts.printable, answer.problems))
            for name in {job.name for job in jobs} & answer.logs.keys():  # a host names no others
                file = folder / f"{name}.log"
                try:
                    file.with_suffix(".log.new").write_bytes(answer.logs[name].encode(BYTES))
                    file.with_suffix(".log.new").replace(file)
                except OSError:
                    problems.append(f"cannot write {file}")
            return problems

        with ThreadPoolExecutor(len(self.hosts)) as pool:
            return [told for each in pool.map(fetch, self.hosts) for told in each]

    def ask(
        self,
        what: str,
        jobs: Sequence[Job] | None = None,
        files: Callable[[str], Mapping[str, str]] | None = None,
        **request: Any,
    ) -> Answer:
        """Asks all hosts at once; problems then name their host.

        Args:
          what: function of `terngrad.launcher.processes`.
          jobs: about which; None = all.
          files: returns texts for a host, by path there.
          request: further arguments of the function.
        """

        def ask(host: str) -> Answer:
            own = [job for job in (self.jobs if jobs is None else jobs) if job.host == host]
            texts = {"files": files(host)} if files else {}
            try:
                answer = self._run(host, {"do": what, **request, **texts}, own)
            except UnreachableError as error:
                return Answer(problems=[f"{host} cannot be reached ({error})"])
            except HostError as error:
                return Answer(problems=[f"{host}: {error}"])
            named = lambda texts: [f"{host}: {hosts.printable(text)}" for text in texts]
            shown = [hosts.printable(line) for line in answer.lines]
            return Answer(shown, named(answer.problems), named(answer.ended))

        with ThreadPoolExecutor(len(self.hosts)) as pool:
            return _joined(pool.map(ask, self.hosts))

    def _run(self, host: str, request: Mapping[str, Any], jobs: Sequence[Job]) -> Answer:
        """Asks a host; raises HostError if it does not answer."""
        text = json.dumps({**request, "jobs": [dataclasses.asdict(job) for job in jobs]})
        with contextlib.ExitStack() as stack:
            asked, told, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            asked.write(f"{text}\n".encode())
            asked.seek(0)
            try:
                done = subprocess.run(
                    self._command(host),
                    stdin=asked,
                    stdout=told,
                    stderr=errors,
                    start_new_session=True,  # Ctrl-C must not interrupt a host in its work
                    check=False,
                )
            except OSError as error:  # there is no ssh
                raise UnreachableError(f"{error.filename}: {error.strerror}") from None
            told.seek(0)
            errors.seek(0)
            greeting = []
            while (line := told.readline()) and line != _MARK_LINE:
                greeting.append(line)
            if not line or done.returncode:  # an account may end with success, and run nothing
                said = b"".join(greeting) + errors.read()
                why = hosts.last_line(said.decode(errors="replace"), "no reason given")
                is_reached = done.returncode == hosts.MISSING_STATUS
                raise (HostError if is_reached else UnreachableError)(why)
            try:
                return Answer(**json.loads(told.read()))
            except (ValueError, TypeError):
                raise UnreachableError("its working copy is of another version") from None


def _joined(answers: Iterable[Answer]) -> Answer:
    joined = Answer()
    for answer in answers:
        joined.lines += answer.lines
        joined.problems += answer.problems
        joined.ended += answer.ended
    return joined
