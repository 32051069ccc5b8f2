"""Laws of mnist_distributed_train with local steps: engines give the same bits, as restarts do."""

import dataclasses
import os
import re
import shutil
import signal
import sys

import numpy as np
import pytest

from inception.flags.checks import refuse_beside_local_steps
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.testing.cluster import ProcessCluster
from inception.testing.runs import (
    LONGER,
    SMALL,
    Run,
    as_flags,
    assert_equal_parameters,
    command_of_two,
    flags_of,
    newest_state,
    paced_flags_of,
    parameters,
    worker_pids,
)
from terngrad.testing import forked
from terngrad.testing.processes import Started
from terngrad.training import checkpoints

FLAGS = SMALL | {
    "codec": "ternary-feedback",
    "local_steps": 3,
    "outer_feedback": 0.75,
    "initial_learning_rate": 0.05,
}
SENT = r"sends (at most )?(\d+) bytes a step"


def arguments(train_dir, **flags):
    return as_flags(FLAGS | {"train_dir": train_dir} | flags)


def command(train_dir, engine, **flags):
    """Returns the command of a training of two workers."""
    return command_of_two(engine, *arguments(train_dir, **flags))


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


def are_shared(folder):
    """Returns whether the nodes' own weights are the shared ones, but for steps of no length."""
    own, shared = newest_state(folder / "worker_0"), newest_state(folder)
    pairs = [
        (v, shared[re.sub(r"weights\.S\d", "variables", n)])
        for n, v in own.items()
        if n.startswith("state/weights.")
    ]
    assert pairs
    return all(np.allclose(*pair, rtol=0, atol=1e-20) for pair in pairs)


def of_workers(folder):
    return newest_state(folder / "worker_0") | newest_state(folder / "worker_1")


KINDS = {
    "whole": {"local_fragments": 1},
    "fragments": {"local_fragments": 3},
    "overlap": {"local_fragments": 1, "local_overlap": True},
    "overlapping fragments": {"local_fragments": 3, "local_overlap": True},
}

OFTEN = {  # the other engines on request
    "whole": ("collective",),
    "fragments": ("parameter_server",),
    "overlap": (),
    "overlapping fragments": ("collective", "mpi"),
}


def _marked(kind):
    return pytest.param(kind, marks=pytest.mark.exhaustive if kind == "overlap" else ())


@pytest.fixture(scope="module", name="kind", params=map(_marked, KINDS))
def _kind(request):
    """Flags of a kind of exchange."""
    return KINDS[request.param]


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory, kind):
    """The folder of an undisturbed training of 12 steps by one process of four nodes."""
    folder = tmp_path_factory.mktemp("whole")
    flags = {"max_steps": 12, "num_nodes": 4, "batch_size": 16, **kind}
    own = [sys.executable, "-m", "inception.mnist_train", *arguments(folder, **flags)]
    done = forked.run(own)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        pytest.param(kind, engine, marks=() if engine in often else pytest.mark.exhaustive)
        for kind, often in OFTEN.items()
        for engine in ("collective", "parameter_server", "mpi")
    ],
    indirect=["kind"],
    scope="module",
)
def test_laws_4_and_8_workers_that_start_again_give_the_bits_of_one_process(
    tmp_path, whole, kind, engine
):
    for steps in (5 if kind["local_fragments"] > 1 else 6, 12):  # fragments end after any step here
        predicts = engine == "collective" and steps == 12  # which changes no bit
        flags = {"max_steps": steps, "predict": predicts, **kind}
        with Started(command(tmp_path, engine, **flags)) as run:
            run.succeed()
        assert "starts from zero" not in run.output
        assert "copies differ" not in run.output
        named = "Prediction: ternary-feedback with --local_steps=3 "
        named += "and --local_overlap " if "local_overlap" in kind else ""
        assert (named in run.output) == predicts
        assert ("Recommended here: --codec=" in run.output) == predicts
    assert_equal(newest_state(tmp_path), newest_state(whole))
    assert_equal(of_workers(tmp_path), newest_state(whole / "worker_0"))


@pytest.mark.slow
def test_law_8_killed_and_started_again_equals_undisturbed(tmp_path, whole, kind):
    own = {"num_nodes": 4, "batch_size": 16, "save_iter": 1, "keep_checkpoints": 0, **kind}
    flags = arguments(tmp_path, max_steps=100_000, **own)
    with Started([sys.executable, "-m", "inception.mnist_train", *flags]) as run:
        run.wait_for(r"step (12|20),")  # the end of the block kills it
    for path in checkpoints.all_checkpoints(str(tmp_path)):
        if checkpoints.step_of(path) > 6:  # as if it had been killed there
            for file in tmp_path.glob(f"model.ckpt-{checkpoints.step_of(path)}.*"):
                file.unlink()
    done = forked.run(
        [
            *[sys.executable, "-m", "inception.mnist_train"],
            *arguments(tmp_path, max_steps=12, **own),
        ]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_equal(newest_state(tmp_path), newest_state(whole))


@pytest.mark.slow
def test_training_ends_and_saves_at_the_next_exchange(tmp_path, train_here):
    printed = train_here(tmp_path, max_steps=10, save_iter=5, keep_checkpoints=0, codec="float")
    steps = [checkpoints.step_of(path) for path in checkpoints.all_checkpoints(str(tmp_path))]
    assert steps == [6, 12]
    assert f"Finished training at step 12: {tmp_path}/model.ckpt-12" in printed
    again = train_here(tmp_path, max_steps=12, codec="float")
    assert "There is nothing left to train up to step 12" in again


@pytest.mark.slow
def test_law_7_h_local_steps_announce_an_h_th_of_the_bytes_of_a_step(tmp_path, train_here):
    found = []
    for steps in (1, 3):
        printed = train_here(tmp_path / str(steps), max_steps=3, local_steps=steps)
        found.append(int(re.search(SENT, printed)[2]))
    assert found[1] == pytest.approx(found[0] / 3, abs=1)


@pytest.mark.slow
def test_law_7_fragments_announce_the_bytes_of_one_exchange_of_all(tmp_path, train_here):
    found = []
    for fragments in (1, 3):
        flags = {"max_steps": 3, "local_fragments": fragments}
        printed = train_here(tmp_path / str(fragments), **flags)
        found.append(int(re.search(SENT, printed)[2]))
    assert found[0] == pytest.approx(found[1], rel=0.01)
    assert "3: 110 to 78400 parameters each, one of them after each 1 steps." in printed


@pytest.mark.slow
def test_law_10_more_fragments_than_variables_are_one_line(tmp_path, train_here):
    with pytest.raises(SystemExit) as ended:
        train_here(tmp_path, max_steps=6, local_steps=6, local_fragments=6)
    assert str(ended.value).endswith(
        "flag --local_fragments=6: 6 fragments of 4 trained variables; allowed are 1 to 4"
    )
    assert "\n" not in str(ended.value)


@pytest.mark.slow
def test_a_worker_without_its_own_weights_begins_with_the_shared_ones_and_says_so(
    tmp_path, train_here
):
    lost, kept = tmp_path / "lost", tmp_path / "kept"
    train_here(lost, max_steps=4, local_fragments=3)
    shutil.copytree(lost, kept)
    shutil.rmtree(lost / "worker_0")
    still = {"max_steps": 5, "local_fragments": 3, "initial_learning_rate": 1e-30}
    assert "starts from zero" not in train_here(kept, **still)
    assert "and --local_steps=3 starts from zero: " in train_here(lost, **still)
    assert are_shared(lost)
    assert not are_shared(kept)


@pytest.mark.parametrize(("before", "now"), [(False, True), (True, False)])
@pytest.mark.slow
def test_overlap_may_begin_or_end_within_a_run_with_new_own_weights(
    tmp_path, train_here, before, now
):
    train_here(tmp_path, max_steps=6, local_overlap=before)
    output = train_here(tmp_path, max_steps=12, local_overlap=now)
    assert f"local_overlap = {now} (was {before})." in output
    line = re.search(r"^The memory of .* and --local_steps=3 starts from zero: .*$", output, re.M)
    assert line and re.search(r"\w[.?]$", line[0])
    assert "Finished training at step 12" in output


@pytest.mark.parametrize("before", [{"local_fragments": 3}, {"local_overlap": True}])
@pytest.mark.slow
def test_own_weights_that_a_run_no_longer_has_are_named_where_nothing_else_is_kept(
    tmp_path, train_here, before
):
    bare = {"codec": "ternary", "optimizer": "gd"}
    train_here(tmp_path, max_steps=6, **bare, **before)
    output = train_here(tmp_path, max_steps=9, **bare)
    line = f"This run keeps no memory; that of {tmp_path}/worker_0/model.ckpt-6 is dropped.\n"
    assert line in output
    assert "memory" not in train_here(tmp_path, max_steps=12, **bare)


@pytest.mark.slow
def test_a_signal_saves_at_an_exchange_and_the_run_goes_on(tmp_path):
    with Started(command(tmp_path, "collective", max_steps=1_000_000)) as run:
        run.wait_for(r"step 30,")
        run.process.send_signal(signal.SIGTERM)
        run.finish()
    saved = checkpoints.step_of(checkpoints.latest_checkpoint(str(tmp_path)))
    assert saved % 3 == 0
    done = forked.run(command(tmp_path, "collective", max_steps=saved + 3))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "starts from zero" not in done.stdout


@pytest.mark.parametrize(("before", "now"), [(3, 1), (1, 3)])
@pytest.mark.slow
def test_local_steps_do_not_begin_or_end_within_a_run(tmp_path, train_here, before, now):
    train_here(tmp_path, max_steps=3, local_steps=before)
    with pytest.raises(SystemExit) as ended:
        train_here(tmp_path, max_steps=6, local_steps=now)
    assert f"flag --local_steps={now}: {tmp_path}/model.ckpt-3 was trained with" in str(ended.value)
    assert "\n" not in str(ended.value)


def test_law_10_what_needs_an_exchange_in_each_step_is_refused():
    cluster = ClusterConfig(worker_hosts=("a:1", "b:1"), num_replicas_to_aggregate=1)
    config = TrainConfig(dataset_name="mnist", net="mlp")
    refuse_beside_local_steps(config, cluster)
    why = "num_replicas_to_aggregate=1: must be -1"
    with pytest.raises(ValueError, match=f"^flag --{why} with --local_steps=4$"):
        refuse_beside_local_steps(dataclasses.replace(config, local_steps=4), cluster)


@pytest.mark.slow
def test_law_8_a_worker_and_a_ps_that_come_back_change_no_bit(tmp_path):
    # Without what a worker alone knows: its optimizer has no slots, and its codec no memory.
    own = ["--local_steps=3", "--optimizer=gd", "--initial_learning_rate=0.05"]
    alone, together = tmp_path / "alone", tmp_path / "together"
    with Run(1, *_with(own, flags_of(alone, "mlp", 6, 3, steps=LONGER))) as run:
        run.succeed()
    flags = paced_flags_of(together, *own, steps=LONGER)
    with Run(3, *flags, ["--ps=1", "--max_restarts=2"]) as run:
        run.wait_for(r"Worker 2: .* step 30,")
        os.kill(worker_pids(together)[2], signal.SIGKILL)
        run.wait_for(r"^\[2\] Joined the training at step \d+\.")
        os.kill(worker_pids(together, "ps")[0], signal.SIGKILL)
        run.wait_for(r"^ps 0 was killed and is started again in 1 s\.")
        run.succeed()
    assert_equal_parameters(parameters(alone, LONGER), parameters(together, LONGER))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param("whole", marks=pytest.mark.exhaustive), "fragments", "overlap"]
)
def test_an_elastic_all_reduce_goes_on_without_a_worker_and_takes_it_in_again(
    tmp_path, kind, monkeypatch
):
    full_speed = tmp_path / "full_speed"
    monkeypatch.setenv("FULL_SPEED", str(full_speed))
    own = [
        "--local_steps=3",
        *(f"--{name}={value}" for name, value in KINDS[kind].items()),
        "--grad_bits=32",
        "--clip_factor=0",
        "--codec=ternary-feedback",
    ]
    flags = paced_flags_of(tmp_path, *own, "--elastic", "--worker_timeout_secs=200", steps=1800)
    with ProcessCluster(3, 0, *flags) as cluster:
        cluster.wait_for("0", r"Worker 0: .* step (12|20),")
        cluster.kill("1")
        cluster.wait_for("0", r"^Workers 0 and 2 train from step \d+ on\.$")
        cluster.start("1")
        cluster.wait_for("1", r"^The memory of .* and --local_steps=3 starts from zero: ")
        cluster.wait_for("1", r"^Worker 1: .* step \d+,")
        full_speed.touch()
        cluster.finish()
        assert "Warning" not in cluster.lines()  # which tells of copies that differ
        assert checkpoints.latest_checkpoint(str(tmp_path)).endswith("-1800")


def _with(more, program_and_flags):
    program, flags = program_and_flags
    return program, [*flags, *more]
