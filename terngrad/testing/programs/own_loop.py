"""A training loop of a user's own: python -m terngrad.testing.programs.own_loop FILE [OPTION...].

It trains a small net with plain steps of size 0.1, and writes the parameters and the first means to
FILE, which begins with the rank of its process.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

import numpy as np
import tensorflow as tf

import terngrad
from terngrad.cluster.managed import launch_variables
from terngrad.testing import nets

_ENDS = {
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "fail": lambda: {}["a mistake"],
    "operation": lambda: tf.reshape([1, 2, 3], [2]),
    "leave": lambda: sys.exit(0),
    "exit": lambda: sys.exit(3),
}


def main() -> None:
    """Trains."""
    options = argparse.ArgumentParser()
    options.add_argument("file")
    options.add_argument("--gradients", default="ternary")
    options.add_argument("--nodes", type=int, default=1)
    options.add_argument("--steps", type=int, default=4)
    options.add_argument("--end", choices=_ENDS, help="how a worker ends before the third step")
    options.add_argument("--end_of", type=int, default=1, help="which worker")
    options.add_argument("--engine", default="auto")
    options.add_argument("--tls", nargs=3)
    options.add_argument("--eager", action="store_true")
    options.add_argument("--by_arguments", action="store_true", help="join takes what was launched")
    given = options.parse_args()

    terngrad.configure()
    tls = terngrad.Tls(*given.tls) if given.tls else None
    roles = launched() if given.by_arguments else {}
    group = terngrad.join(engine=given.engine, tls=tls, timeout_secs=20.0, **roles)
    tf.keras.utils.set_random_seed(1 + group.rank)  # the chief's parameters count
    model = nets.make_model()
    if not group.is_chief:
        model.trainable_variables[0].assign_add(tf.ones_like(model.trainable_variables[0]))
    reducer = terngrad.Reducer(
        model.trainable_variables, group, gradients=given.gradients, nodes=given.nodes, seed=3
    )
    step = make_step(model, reducer, given.nodes)
    if not given.eager:
        step = tf.function(step)
    first = None
    for i, (images, labels) in enumerate(nets.make_batches().take(given.steps)):
        if i == 2 and given.end and group.rank == given.end_of:
            _ENDS[given.end]()
        share = nets.BATCH // group.size
        mine = slice(group.rank * share, (group.rank + 1) * share)
        means = step(images[mine], labels[mine])
        first = first or [mean.numpy() for mean in means]
    parameters = [v.numpy() for v in model.trainable_variables]
    folder, name = os.path.split(given.file)
    arrays = {
        f"{kind}{i}": v
        for kind, vs in (("mean", first), ("parameter", parameters))
        for i, v in enumerate(vs)
    }
    np.savez(os.path.join(folder, f"{group.rank}{name}"), **arrays)
    if reducer.reduction.exchange.packs_codes:
        octets = reducer.bits_per_parameter * reducer.layout.size / 8
        assert abs(octets * int(reducer.state.step) - reducer.bytes_sent) < 1.0
    print(f"{group.label}: {reducer.bytes_sent} bytes, {reducer.bits_per_parameter:.3g} bits")
    group.barrier()


def launched():
    """Returns the launcher's settings as arguments of `join`, and removes its variables."""
    role = launch_variables.role(os.environ)
    del os.environ[launch_variables.MARK]
    hosts = list(role.worker_hosts)
    return {"hosts": hosts, "rank": role.task_id, "control_port": role.control_port}


def make_step(model, reducer, nodes):
    """Returns a function of a batch, which makes a step and returns the means."""

    def gradients(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return tape.gradient(loss, model.trainable_variables)

    def step(images, labels):
        parts = zip(tf.split(images, nodes), tf.split(labels, nodes), strict=True)
        found = [gradients(*part) for part in parts]
        means = reducer(found if nodes > 1 else found[0])
        for variable, mean in zip(model.trainable_variables, means, strict=True):
            variable.assign_sub(0.1 * mean)
        return means

    return step


if __name__ == "__main__":
    main()
