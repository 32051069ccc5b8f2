"""Runs a launcher's request on a host.

python -m terngrad.launcher.agent

Runs in the working copy. Standard input has one request, a line of JSON: the name of a function of
`processes` and its arguments. Its answer follows the line `MARK`, as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any

from terngrad.launcher import processes
from terngrad.launcher.process import MARK, Process

_FUNCTIONS = {each.__name__: each for each in (processes.check, processes.start, processes.status)}
_FUNCTIONS["stop"] = processes.stop


def main() -> None:
    """Answers the request on standard input."""
    request = _at_home(json.loads(sys.stdin.readline()))
    function = _FUNCTIONS[request.pop("do")]
    own = [Process(**each) for each in request.pop("processes")]
    print(f"\n{MARK}", flush=True)
    print(json.dumps(dataclasses.asdict(function(own, **request))))


def _at_home(value: Any) -> Any:
    """Puts this user's home in the place of each `~` that begins a text."""
    if isinstance(value, dict):
        return {_at_home(key): _at_home(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_at_home(each) for each in value]
    return os.path.expanduser(value) if isinstance(value, str) else value


if __name__ == "__main__":
    main()
