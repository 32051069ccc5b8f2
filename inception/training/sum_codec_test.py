"""Laws of mnist_distributed_train with coded sums: neither engines nor restarts change a bit."""

import dataclasses
import functools
import os
import re
import signal
import sys
import zlib

import numpy as np
import pytest

from inception.flags.checks import refuse_beside_coded_sums, refuse_what_needs_all_workers
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.testing.runs import (
    LONGER,
    SMALL,
    Run,
    as_flags,
    command_of_two,
    newest_state,
    paced_flags_of,
    worker_pids,
)
from inception.training.build import build_training
from inception.training.problem import problem_of
from terngrad.exchange.exchange import Owner
from terngrad.testing import forked
from terngrad.testing.processes import Started
from terngrad.testing.transport import EchoTransport

FLAGS = SMALL | {
    "grad_bits": 1,
    "clip_factor": 2.5,
    "sum_codec": "ternary",
    "initial_learning_rate": 0.05,
}
_LOCAL = {"grad_bits": 32, "clip_factor": 0, "codec": "ternary-feedback", "outer_feedback": 0.75}
WAYS = {
    "each step": {},
    "local steps": _LOCAL | {"local_steps": 3},
    "fragments": _LOCAL | {"local_steps": 6, "local_fragments": 2},
}
ENGINES = ("collective", "parameter_server", "mpi", "elastic", "elastic ps")
OFTEN = {  # the others on request
    "each step": ("collective", "parameter_server", "elastic"),
    "local steps": (),  # fragments are local steps, too
    "fragments": ("collective", "parameter_server"),
}
CASES = [
    pytest.param(way, engine, marks=() if engine in OFTEN[way] else pytest.mark.exhaustive)
    for way in WAYS
    for engine in ENGINES
]


def arguments(train_dir, **flags):
    return as_flags(FLAGS | {"train_dir": train_dir} | flags)


def command(train_dir, engine, **flags):
    """Returns the command of a training of two workers."""
    return command_of_two(engine, *arguments(train_dir, **flags))


def kept_sums(*folders):
    """Returns what the owners of shares keep together, by variable."""
    pieces = {}
    for folder in folders:
        for name, values in newest_state(folder).items():
            if found := re.search(r"kept_sums\.S(\d+)\.S(\d+)/", name):
                pieces.setdefault(int(found[1]), []).append((int(found[2]), values))
    kept = {}
    for variable, own in pieces.items():
        kept[variable] = np.zeros(max(first + values.size for first, values in own), np.float32)
        for first, values in own:  # of views each owner has all values, and zeros for the others'
            kept[variable][first : first + values.size] += values
    return kept


@pytest.fixture(scope="module", name="whole_of")
def _whole_of(tmp_path_factory):
    """Returns the folder of an undisturbed training of 12 steps by one process of four nodes."""

    @functools.cache
    def whole_of(way):
        folder = tmp_path_factory.mktemp("whole")
        flags = WAYS[way] | {"max_steps": 12, "num_nodes": 4, "batch_size": 16}
        program = [sys.executable, "-m", "inception.mnist_train", *arguments(folder, **flags)]
        done = forked.run(program)
        assert done.returncode == 0, done.stdout + done.stderr
        return folder

    return whole_of


@pytest.mark.slow
@pytest.mark.parametrize(("way", "engine"), CASES)
def test_laws_4_and_8_workers_that_start_again_give_the_bits_of_one_process(
    tmp_path, whole_of, way, engine
):
    folder = whole_of(way)
    for steps in (6, 12):
        predicts = engine != "mpi" and steps == 12  # which changes no bit
        flags = WAYS[way] | {"max_steps": steps, "predict": predicts}
        with Started(command(tmp_path, engine, **flags)) as run:
            run.succeed()
        assert bool(re.search(r"Prediction: \S+ with --sum_codec=ternary ", run.output)) == predicts
        assert ("Recommended here: --codec=" in run.output) == predicts
        assert "starts from zero" not in run.output
        assert "copies differ" not in run.output
    found, expected = newest_state(tmp_path), newest_state(folder)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    kept = kept_sums(tmp_path / "worker_0", tmp_path / "worker_1")
    expected = kept_sums(folder / "worker_0")
    assert kept.keys() == expected.keys() and any(v.any() for v in expected.values())
    for variable, values in expected.items():
        np.testing.assert_array_equal(kept[variable], values)


@pytest.mark.slow
def test_copies_stay_equal_where_the_owner_of_a_share_is_killed_and_comes_back(tmp_path):
    program, flags = paced_flags_of(tmp_path, "--sum_codec=ternary", steps=LONGER)
    with Run(3, program, flags, ["--ps=1", "--max_restarts=1"]) as run:
        run.wait_for(r"Worker 2: .* step 30,")
        os.kill(worker_pids(tmp_path)[2], signal.SIGKILL)
        run.wait_for(r"^\[2\] Joined the training at step \d+\.")
        run.succeed()
    assert "copies differ" not in run.output


@pytest.mark.slow
@pytest.mark.parametrize("ps", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_an_elastic_training_says_that_the_owners_of_each_view_begin_anew(tmp_path, ps):
    program, flags = paced_flags_of(tmp_path, "--sum_codec=ternary", "--elastic")
    cleared = r"^\[0\] The memory of --sum_codec=ternary starts from zero: workers came or went"
    with Run(3, program, flags, [f"--ps={ps}", "--max_restarts=1"]) as run:
        run.wait_for(r"Worker 2: .* step 30,")
        assert not re.search(cleared, run.output, re.MULTILINE)
        sent = r"each worker sends at most \d+ bytes a step, .* while all workers are there\."
        assert re.search(sent, run.output)
        os.kill(worker_pids(tmp_path)[2], signal.SIGKILL)
        run.wait_for(cleared)
        run.wait_for(r"^\[2\] Joined the training at step [1-9]\d*\.")
        run.wait_for(r"^\[2\] Worker 2: .* step \d+,")
    assert "Traceback" not in run.output


CONFIG = TrainConfig(dataset_name="mnist", net="mlp", grad_bits=1, sum_codec="ternary")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_saves_with_the_others_though_it_owns_no_share(rank):
    """All send the same requests in a step: one that keeps nothing of the means asks nothing."""
    one_block = {"trainable_scopes": ("logits",), "quantize_logits": True}
    config = dataclasses.replace(CONFIG, benchmark_mode=True, **one_block)
    network = EchoTransport(rank, 2)
    training = build_training(config, problem_of(config), 10.0, ["/CPU:0"], network)
    assert bool(training.memory.variables) == (rank == 0)
    assert all(runner.saves_together for runner in training.runners)


class _View(EchoTransport):
    """An elastic training's network; this process is the first of two owners."""

    def exchange(self, *args):
        exchange = super().exchange(*args)
        exchange.begin_view(Owner(0, 2, 2))
        return exchange


def memory_of_view(**changes):
    config = dataclasses.replace(CONFIG, benchmark_mode=True, quantize_logits=True, **changes)
    return build_training(config, problem_of(config), 10.0, ["/CPU:0"], _View(0, 1)).memory


@pytest.mark.parametrize("fragments", [1, 2])
def test_law_8_an_owner_of_means_in_other_buckets_starts_from_zero(tmp_path, fragments):
    local = {"local_steps": 2, "local_fragments": fragments}
    saved, other = (memory_of_view(bucket_elements=n, **local) for n in (200, 11))
    # The logits are in one bucket or in two, which the names do not tell.
    assert saved.variables.keys() == other.variables.keys()
    saved.save(str(tmp_path), 5, 0)
    assert saved.restore(str(tmp_path), 5) == ""
    assert other.restore(str(tmp_path), 5).endswith("is of means in other buckets")


def test_an_owner_restores_what_earlier_versions_saved_without_their_buckets(tmp_path):
    memory = memory_of_view()
    owner = memory.variables["owner_of_sums"]
    now = owner.numpy().tolist()
    before = [*now[:-1], zlib.crc32(b"[]")]
    assert before != now
    owner.assign(before)
    memory.save(str(tmp_path), 5, 0)
    assert memory.restore(str(tmp_path), 5) == ""
    assert owner.numpy().tolist() == now


@pytest.mark.parametrize("ps_hosts", [(), ("c:1",)])
def test_law_10_what_goes_without_an_owner_is_refused(ps_hosts):
    hosts = {"worker_hosts": ("a:1", "b:1"), "ps_hosts": ps_hosts}
    refuse_beside_coded_sums(CONFIG, ClusterConfig(**hosts, elastic=True))
    cluster = ClusterConfig(**hosts, num_replicas_to_aggregate=1)
    for config in ({"sum_codec": "exact"}, {"grad_bits": 32}):  # floats have no codes
        refuse_beside_coded_sums(dataclasses.replace(CONFIG, **config), cluster)
    why = "num_replicas_to_aggregate=1: must be -1 with --sum_codec=ternary"
    with pytest.raises(ValueError, match=f"^flag --{why}"):
        refuse_beside_coded_sums(CONFIG, cluster)


def test_law_10_asynchronous_training_has_no_sums_to_code():
    why = "needs --cross_replica_sync=True: a ps sends"
    with pytest.raises(ValueError, match=f"^flag --sum_codec=ternary: {why}"):
        refuse_what_needs_all_workers(CONFIG)


@pytest.mark.parametrize("name", ["use_encoding", "scaler_sharing"])
def test_law_10_codes_whose_means_are_no_sums_are_refused(name):
    with pytest.raises(ValueError, match=f"^flag --{name}=False: must be True with --sum_codec=te"):
        dataclasses.replace(CONFIG, **{name: False})
