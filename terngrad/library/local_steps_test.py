"""Local steps of a loop of one's own: copies are equal after each exchange, errors are named."""

import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from terngrad.cluster.addresses import free_ports
from terngrad.cluster.managed import launch_variables
from terngrad.library.group import Group
from terngrad.library.local_steps import LocalSteps
from terngrad.testing.processes import finished
from terngrad.testing.programs.own_local_steps import LOCAL_STEPS

ALONE = Group()
STEPS = 4 * LOCAL_STEPS


def train(folder, workers, servers=0):
    """Runs the loop; returns what each worker wrote, and the output of all."""
    folder.mkdir()
    control, *ports = free_ports(workers + servers + 1, "127.0.0.1")
    addresses = [f"127.0.0.1:{port}" for port in ports]
    hosts, ps_hosts = addresses[:workers], addresses[workers:]
    roles = [("worker", i) for i in range(workers)] + [("ps", i) for i in range(servers)]
    places = [launch_variables.variables(hosts, i, control, ps_hosts, job) for job, i in roles]
    program = [
        sys.executable,
        "-m",
        "terngrad.testing.programs.own_local_steps",
        str(folder),
        str(STEPS),
    ]
    done = finished([program] * len(places), places)
    assert all(status == 0 for _, status in done), done
    return [np.load(folder / f"{i}.npz") for i in range(workers)], "".join(o for o, _ in done)


@pytest.mark.slow
def test_law_4_copies_are_equal_after_each_exchange_on_each_engine(tmp_path):
    found, output = train(tmp_path / "sockets", 2)
    served, _ = train(tmp_path / "ps", 2, 1)
    assert sorted({int(name.split()[0]) for name in found[0]}) == [3, 6, 9, 12]
    for other in (found[1], *served):
        assert other.files == found[0].files
        for name in other.files:
            np.testing.assert_array_equal(found[0][name], other[name], err_msg=name)
    assert len(re.findall(rf"bytes in {STEPS // LOCAL_STEPS}\.", output)) == 2  # law 7


def make(**settings):
    weights = [tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="kernel")]
    defaults = {"steps": 2, "gradients": "float32"}
    return weights[0], LocalSteps(weights, ALONE, **defaults | settings)


def test_an_exchange_is_a_step_of_nesterovs_momentum_with_the_delta():
    weights, local = make(learning_rate=0.5, momentum=0.9)
    start, velocity = weights.numpy(), 0.0
    for change in (0.25, -0.5):
        weights.assign_sub(tf.fill([2, 2], change))
        assert not local.step()
        weights.assign_sub(tf.fill([2, 2], change))
        assert local.step()
        velocity = 0.9 * velocity + 2 * change
        start = start - 0.5 * (2 * change + 0.9 * velocity)
        np.testing.assert_allclose(weights, start, rtol=1e-6)
    assert int(local.state.count) == 0


def test_a_checkpoint_of_the_state_goes_on_with_the_same_bits(tmp_path):
    chosen = {"gradients": "ternary-feedback", "feedback": 0.5}
    (first, one), (second, other) = make(**chosen), make(**chosen)
    draw = lambda i: tf.random.stateless_normal([2, 2], [i, 1])
    for i in range(3):
        first.assign_sub(draw(i))
        one.step()
    saved = tf.train.Checkpoint(w=first, local=one.state).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(w=second, local=other.state).restore(saved).assert_consumed()
    for i in range(3, 8):
        for weights, local in ((first, one), (second, other)):
            weights.assign_sub(draw(i))
            local.step()
        np.testing.assert_array_equal(first, second)
    assert np.any(one.state.reducer.memory["memory/0/0"])


def test_weights_of_half_precision_keep_their_type():
    weights = tf.Variable(tf.ones([4], tf.float16))
    local = LocalSteps([weights], ALONE, steps=1, learning_rate=1.0, momentum=0.0)
    weights.assign_sub(tf.ones([4], tf.float16))
    assert local.step()
    assert weights.dtype == tf.float16
    np.testing.assert_array_equal(weights, np.zeros(4))


@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        ({"steps": 0}, ValueError, "steps is 0; allowed are 1 and more"),
        ({"steps": 1.5}, TypeError, "steps is 1.5; allowed are integers"),
        ({"momentum": 2}, ValueError, "momentum is 2; allowed are numbers from 0 to 1"),
        ({"feedback": "a"}, TypeError, "feedback is 'a'; allowed are numbers"),
        ({"learning_rate": -1.0}, ValueError, "learning_rate is -1.0; allowed are finite numbers"),
        ({"nodes": 2}, TypeError, "nodes is no argument of LocalSteps"),
        ({"gradients": "none"}, ValueError, "gradients is 'none'; allowed are"),
    ],
)
def test_law_10_a_wrong_argument_is_named(settings, error, why):
    with pytest.raises(error, match=re.escape(why)):
        make(**settings)


def test_law_10_a_step_within_a_graph_is_refused():
    _, local = make()
    with pytest.raises(ValueError, match=r"LocalSteps\.step: call it outside tf.function"):
        tf.function(local.step, autograph=False)()
