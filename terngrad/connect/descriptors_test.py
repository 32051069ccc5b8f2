"""The limit of open files."""

import os
import resource
import subprocess
import sys
import textwrap

from terngrad.connect import descriptors


def _run(program: str) -> list[str]:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return done.stdout.split()


def test_the_soft_limit_rises_to_the_hard_one_and_no_further():
    said = _run("""
        import resource
        from terngrad.connect import descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
        descriptors.raise_limit()
        print(*resource.getrlimit(resource.RLIMIT_NOFILE))
        print(descriptors.most_connections(1000, 10) <= 300 - 64)
        resource.setrlimit(resource.RLIMIT_NOFILE, (70, 70))
        try:
            descriptors.most_connections(1000, 10)
        except ValueError as error:
            print(error)
    """)
    assert said[:3] == ["300", "300", "True"]
    assert " ".join(said[3:]).startswith("the limit of open files (ulimit -n) is 70; allowed is ")


def test_connections_that_fit_are_not_limited():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == resource.RLIM_INFINITY or descriptors.most_connections(8, 4) == 8
