"""What a launcher runs on a host.

python -m terngrad.launcher.agent

Runs in the working copy. Standard input has one request, a line of JSON: the name of a function of
`processes` and its arguments. The answer follows the line `MARK`: JSON, or the bytes of a log.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from terngrad.launcher import processes
from terngrad.launcher.protocol import MARK, Job

_FUNCTIONS = ("check", "start", "settle", "status", "stop", "log")


def main() -> None:
    """Answers the request on standard input."""
    request = json.loads(sys.stdin.readline())
    functions = {name: getattr(processes, name) for name in _FUNCTIONS}
    function = functions[request.pop("do")]
    jobs = [Job(**each) for each in request.pop("jobs")]
    print(f"\n{MARK}", flush=True)
    if answer := function(jobs, **request):
        print(json.dumps(dataclasses.asdict(answer)))


if __name__ == "__main__":
    main()
