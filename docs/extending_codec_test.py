"""The codecs of docs/extending.md run on every engine and keep the laws of codecs."""

import contextlib
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from terngrad.draws import DrawKey
from terngrad.ops.reference import ReferenceKernels
from terngrad.testing.addresses import free_addresses
from terngrad.testing.conformance import SHAPES, STEPS, delivered, gradients_of, parameter_servers
from terngrad.testing.processes import finished, mpirun
from terngrad.testing.selection import sample
from terngrad.training import checkpoints

REPO = Path(__file__).parents[1]
FIVE_LEVELS = "five_levels:FiveLevelCodec"
ERROR_FEEDBACK = "error_feedback:ErrorFeedbackCodec"
CODECS = [FIVE_LEVELS, ERROR_FEEDBACK]
NODES, PROCESSES = 4, 2
ENGINES = {
    "sockets": lambda: contextlib.nullcontext(",".join(free_addresses(PROCESSES))),
    "parameter_server": lambda: parameter_servers(1, PROCESSES),
    "mpi": lambda: contextlib.nullcontext("-"),
}


@pytest.fixture(scope="module", name="page")
def _page(tmp_path_factory):
    """The folder with the files of the page."""
    folder = tmp_path_factory.mktemp("page")
    text = (REPO / "docs" / "extending.md").read_text()
    blocks = re.findall(r"```python\n(# (\w+\.py)\n.*?)```", text, re.DOTALL)
    for content, name in blocks:
        (folder / name).write_text(content)
    assert {f"{codec.partition(':')[0]}.py" for codec in CODECS} <= {name for _, name in blocks}
    return folder


def environment(page):
    return {"PYTHONPATH": f"{page}{os.pathsep}{REPO}"}


def run_all(commands, page):
    """Runs commands side by side; shows what they wrote if one fails."""
    found = finished(commands, environment(page))
    assert not any(status for _, status in found), "\n".join(output for output, _ in found)


@pytest.fixture(scope="module", name="alone")
def _alone(page, tmp_path_factory):
    """What one process with all nodes delivers."""
    folder, env = tmp_path_factory.mktemp("local"), environment(page)
    return delivered("local", 1, "-", folder, CODECS, env=env)[0]


@pytest.mark.slow
def test_law_5_five_levels_are_half_the_scale_times_an_integer(alone):
    last = tf.constant(STEPS - 1, tf.int64)
    for i in range(len(SHAPES)):
        scale = max(np.abs(gradients_of(node, last)[i]).max() for node in range(NODES))
        sums = alone[f"{FIVE_LEVELS} {i}"] * 2 * NODES / scale
        np.testing.assert_allclose(sums, np.round(sums), atol=1e-4)
        assert np.abs(sums).max() <= 2 * NODES + 1e-4


@pytest.fixture(name="five_levels")
def _five_levels(page, monkeypatch):
    """Returns the codec of five levels for a variable of some values, with a kind of draws."""
    monkeypatch.syspath_prepend(page)
    from terngrad.codecs.factory import make_codecs
    from terngrad.layout import Policy, make_layout

    def make(size, draws="independent"):
        policy = Policy(codec=FIVE_LEVELS, draws=draws)
        return make_codecs(make_layout(["a/kernel"], [(size,)], policy), ReferenceKernels())[0]

    return make


def key_of(codec, node, step):
    return DrawKey(tf.constant(5, tf.uint64), step, tf.constant(node), codec.antithetic)


@pytest.mark.slow
def test_law_1_the_mean_of_five_levels_is_the_gradient(five_levels):
    codec, gradient = five_levels(64), tf.linspace(-1.0, 1.0, 64)
    scales, steps = tf.constant([1.0]), 500

    @tf.function(autograph=False)
    def sent(step):
        key = key_of(codec, 0, step)
        return codec.sent(codec.encode([gradient], tf.constant([np.inf]), scales, key), scales)[0]

    mean = sum(sent(tf.constant(step, tf.int64)).numpy() for step in range(steps)) / steps
    np.testing.assert_allclose(mean, gradient, atol=5 * 0.25 / np.sqrt(steps))


def test_antithetic_draws_halve_the_noise_of_the_mean_of_two_nodes_with_five_levels(five_levels):
    size, limit, noise = 1 << 16, tf.constant([2.5]), {}
    gradients = tf.random.stateless_normal([2, size], [1, 2])
    clipped = tf.clip_by_value(gradients, -2.5, 2.5)
    for draws in ("independent", "antithetic"):
        codec = five_levels(size, draws)
        keys = [key_of(codec, node, tf.constant(3, tf.int64)) for node in range(2)]
        encoded = [codec.encode([g], limit, limit, k) for g, k in zip(gradients, keys, strict=True)]
        sent = sum(codec.sent(codes, limit)[0].numpy() for codes in encoded)
        noise[draws] = np.mean(np.square(sent - clipped.numpy().sum(axis=0)))
    assert noise["antithetic"] / noise["independent"] == pytest.approx(0.505, abs=0.03)


def assert_conserves(found):
    """Law 9 over all steps and nodes: sent and kept are together all gradients."""
    for i in range(len(SHAPES)):
        steps = [tf.constant(step, tf.int64) for step in range(STEPS)]
        given = sum(gradients_of(node, step)[i].numpy() for node in range(NODES) for step in steps)
        kept = [
            value
            for each in found
            for key, value in each.items()
            if re.fullmatch(rf"{ERROR_FEEDBACK} memory/\d+/{i}", key)
        ]
        assert len(kept) == NODES
        sent = NODES * found[0][f"{ERROR_FEEDBACK} total {i}"]
        np.testing.assert_allclose(sent + sum(kept), given, atol=1e-4)


@pytest.mark.slow
def test_law_9_error_feedback_conserves_gradients(alone):
    assert_conserves([alone])


@pytest.mark.slow
@pytest.mark.parametrize("engine", sample(ENGINES, in_ci=("sockets", "parameter_server")))
def test_law_4_the_codecs_give_the_same_bits_on_every_engine(alone, page, engine, tmp_path):
    launcher = mpirun(PROCESSES) if engine == "mpi" else ()
    with ENGINES[engine]() as hosts:
        env = environment(page)
        together = delivered(engine, PROCESSES, hosts, tmp_path, CODECS, launcher, env)
    assert_conserves(together)
    compared = 0
    for found in together:
        for key in found.keys() - {
            f"{c} {what}" for c in CODECS for what in ("bytes", "payload", "packs")
        }:
            np.testing.assert_array_equal(found[key], alone[key], key)
            compared += "memory/" in key
    assert compared == NODES * len(SHAPES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "codec", [ERROR_FEEDBACK, pytest.param(FIVE_LEVELS, marks=pytest.mark.exhaustive)]
)
def test_an_asynchronous_worker_alone_trains_as_one_machine_does(page, codec, tmp_path):
    flags = [f"--codec={codec}", "--net=mlp", "--benchmark_mode=True"]
    flags += ["--max_steps=5", "--num_nodes=2", "--batch_size=8", "--num_intra_threads=1"]
    flags += ["--save_summaries_secs=0"]
    launch = [sys.executable, "-m", "inception.testing.forked_launch", "--ps=1", "1"]
    launch += ["inception.mnist_distributed_train", "--cross_replica_sync=False"]
    folders = [tmp_path / "local", tmp_path / "asynchronous"]
    commands = [[sys.executable, "-m", "inception.mnist_train"], launch]
    run_all(
        [
            [*command, *flags, f"--train_dir={folder}"]
            for command, folder in zip(commands, folders, strict=True)
        ],
        page,
    )
    local, asynchronous = (
        tf.train.load_checkpoint(checkpoints.latest_checkpoint(str(folder))) for folder in folders
    )
    names = [name for name in local.get_variable_to_shape_map() if name.startswith("state/")]
    assert names
    for name in names:
        np.testing.assert_array_equal(local.get_tensor(name), asynchronous.get_tensor(name), name)
