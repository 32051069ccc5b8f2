"""The loop of `elastic_loop`, which kills itself: python -m terngrad.testing.programs.elastic_kill.

AT STEPS [ARGUMENT=NUMBER...]: AT is the number of the operation between the workers before which it
dies, 0 for the first one of a step. "done" means after the last one, before the updates.
"""

import functools
import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from terngrad.exchange.parameter_server.elastic_mesh import ElasticMesh
from terngrad.ops.mesh import Mesh
from terngrad.testing.elastic_steps import train

_STEPS = 3  # that it makes before


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _counted(numbers: itertools.count, at: int) -> Callable[..., Any]:
    """Wraps an operation's method: the process dies where its input of the `at`-th use is there."""

    def wrap(join: Callable[..., Any]) -> Callable[..., Any]:
        def count(value: Any) -> Any:
            if next(numbers) == at:
                _die()
            return value

        @functools.wraps(join)
        def joined(mesh: Mesh, local: tf.Tensor, *given: Any) -> Any:
            seen = tf.numpy_function(count, [local], local.dtype)
            return join(mesh, tf.ensure_shape(seen, local.shape), *given)

        return joined

    return wrap


def main(at: str, steps: str, *given: str) -> None:
    """Makes steps, and dies."""
    if at == "done":
        numbers = itertools.count()
        ElasticMesh.end_step = lambda mesh, step: _die() if next(numbers) == _STEPS else None
    else:
        # Of a step: scales, then codes; or codes for owners, and scales and codes from them.
        operations = 4 if "codes_sums=1" in given else 2
        wrap = _counted(itertools.count(), _STEPS * operations + int(at))
        Mesh.join, Mesh.join_codes = wrap(Mesh.join), wrap(Mesh.join_codes)
    train(int(steps), *given)


if __name__ == "__main__":
    main(*sys.argv[1:])
