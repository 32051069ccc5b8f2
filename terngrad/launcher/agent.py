"""What a launcher runs on a host.

python -m terngrad.launcher.agent

Runs in the working copy. Standard input has one request, a line of JSON: the name of a function of
`processes` and its arguments. Its answer follows the line `MARK`, as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from terngrad.launcher import processes
from terngrad.launcher.protocol import MARK, Job

_FUNCTIONS = ("check", "start", "settle", "status", "stop", "logs")


def main() -> None:
    """Answers the request on standard input."""
    request = json.loads(sys.stdin.readline())
    functions = {name: getattr(processes, name) for name in _FUNCTIONS}
    function = functions[request.pop("do")]
    jobs = [Job(**each) for each in request.pop("jobs")]
    print(f"\n{MARK}", flush=True)
    print(json.dumps(dataclasses.asdict(function(jobs, **request))))


if __name__ == "__main__":
    main()
