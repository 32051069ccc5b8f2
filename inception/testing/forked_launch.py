"""inception.launch for tests: its processes are forked, as `Started` forks programs."""

import sys
from collections.abc import Mapping, Sequence

from inception import launch
from terngrad.launcher import run
from terngrad.testing.forked import ForkedProgram


class _Forking:
    """Takes the place of the module subprocess."""

    PIPE = STDOUT = DEVNULL = None

    def __init__(self) -> None:
        self._started: list[ForkedProgram] = []

    def Popen(  # noqa: N802
        self, command: Sequence[str], env: Mapping[str, str], **_: object
    ) -> ForkedProgram:
        """Starts `python -u -m MODULE ARGUMENT...` as a child of this process."""
        module, *arguments = command[command.index("-m") + 1 :]
        started = ForkedProgram(module, arguments, env, in_own_group=True, siblings=self._started)
        self._started.append(started)
        return started


if __name__ == "__main__":
    run.subprocess = _Forking()
    sys.exit(launch.main(sys.argv[1:]))
