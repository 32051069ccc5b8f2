"""model.fit on two processes, started as users' programs are."""

import csv
import re
import signal
import sys

import keras
import numpy as np
import pytest

from terngrad.cluster.membership import LOST_STATUS
from terngrad.testing.processes import cluster, finished, launch_environments

pytestmark = pytest.mark.slow
exhaustive = pytest.mark.exhaustive
_WITH_PS = [0, pytest.param(1, marks=exhaustive)]


def outcomes(folder, processes, *options, servers=0):
    """Runs the program on several processes; returns their outputs and statuses."""
    folder.mkdir(exist_ok=True)
    program = [sys.executable, "-m", "terngrad.testing.programs.fit", str(folder), *options]
    envs = launch_environments(processes, servers)
    return finished([program] * len(envs), envs)


def fitted(folder, processes, *options, servers=0):
    """Runs the program; returns what each process wrote."""
    for output, status in outcomes(folder, processes, *options, servers=servers):
        assert status == 0, output
    written = []
    for rank in range(processes):
        with np.load(folder / f"{rank}.npz") as file:
            written.append(dict(file))
    return written


def assert_same_weights(first, *others):
    for other in others:
        for key in (key for key in first if re.fullmatch(r"w\d+", key)):
            np.testing.assert_array_equal(first[key], other[key], key)


@pytest.mark.parametrize(
    ("servers", "option"),
    [
        (0, "--scale_by=channel"),
        pytest.param(0, "--gradients=ternary", marks=exhaustive),
        pytest.param(0, "--gradients=float32", marks=exhaustive),
        pytest.param(2, "--batch_norm", marks=exhaustive),
    ],
)
def test_law_4_fit_on_two_processes_and_fit_on_two_nodes_give_the_same_bits(
    tmp_path, servers, option
):
    chief, other = fitted(tmp_path / "fit", 2, option, servers=servers)
    (nodes,) = fitted(tmp_path / "nodes", 1, option, "--nodes=2")
    assert_same_weights(nodes, chief, other)  # also the moving statistics
    np.testing.assert_allclose(nodes["loss"], chief["loss"], rtol=1e-6)
    assert chief["updates"] == nodes["updates"] == 8

    # Both see the same metrics, also the validation that only the chief has.
    assert {"loss", "accuracy", "val_loss", "bytes_sent", "bits_per_parameter"} < chief.keys()
    for name in ("loss", "accuracy", "val_loss"):
        np.testing.assert_array_equal(chief[name], other[name])
    bits = chief["bits_per_parameter"][0]
    assert bits == 32 if "float32" in option else 0.3 < bits < 2.6

    # Only the chief writes.
    assert (tmp_path / "fit/0/board/train").exists()
    assert not (tmp_path / "fit/1").exists()
    with open(tmp_path / "fit/0.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == pytest.approx(chief["loss"])
    assert not (tmp_path / "fit/1.csv").exists()


@pytest.mark.parametrize("servers", _WITH_PS)
def test_workers_stay_together_in_all_ways_to_train_and_unequal_models_are_named(servers):
    """Several steps an execution, eager steps, one who stops, overflows, several optimizers."""
    module, options = "terngrad.testing.programs.fit_settings", ["--every_way"] * servers
    program = [sys.executable, "-m", module, *options]
    found = finished([program] * (2 + servers), launch_environments(2, servers))
    assert [status for _, status in found] == [0] * len(found), found
    for output, _ in found[:2]:
        assert re.search(
            r"weights of the model is 4 with \d+ values \(\w+\) on worker 1", output
        ), output


@pytest.mark.parametrize(
    ("codec", "servers"),
    [
        ("5-level-feedback", 0),
        pytest.param("ternary", 0, marks=exhaustive),
        pytest.param("ternary", 1, marks=exhaustive),
    ],
)
def test_law_8_killed_and_started_again_with_a_backup_equals_undisturbed(tmp_path, codec, servers):
    """Also with dropout, with a codec and a callback that remember, and over a ps.

    Where only the chief has a BackupAndRestore, the codecs of all remember.
    """
    options = ("--batch_norm", "--dropout", f"--gradients={codec}", "--plateau", "--epochs=3")
    chief, other = fitted(tmp_path / "whole", 2, *options, servers=servers)
    assert_same_weights(chief, other)  # also the moving statistics
    backup = [f"--backup={tmp_path / 'backup'}"]
    backup += ["--chiefs_backup"] * ("feedback" in codec)
    disturbed = (*options, *backup, "--pause=die")
    found = outcomes(tmp_path / "part", 2, *disturbed, servers=servers)
    (output, status), (_, killed), *served = found
    assert (status, killed) == (LOST_STATUS, -9), output
    why = f"died: its {'stream ended' if servers else 'connection closed'}"
    for text in (output, *(text for text, _ in served)):
        assert re.search(rf"worker 1 \S+ {why}", text), text
        assert "Traceback" not in text
    assert [status for _, status in served] == [LOST_STATUS] * servers
    resumed, _ = fitted(tmp_path / "part", 2, *options, *backup, servers=servers)
    assert len(resumed["loss"]) == 2, "the first epoch was made again"
    assert_same_weights(chief, resumed)
    assert [path.name for path in tmp_path.glob("backup*")] == [], "Keras deletes backups, too"


@pytest.mark.parametrize("servers", _WITH_PS)
def test_a_worker_with_fewer_batches_is_named_and_all_end(tmp_path, servers):
    named = r"is a step on worker 0 \S+ and the end of an epoch on worker 1 \S+: all need equally"
    for output, status in outcomes(tmp_path, 2, "--short", servers=servers):
        assert status in (1, LOST_STATUS), output
        assert re.search(named, output), output


@pytest.mark.parametrize(
    ("servers", "pause", "number"),
    [
        (1, "interrupt", signal.SIGTERM),
        pytest.param(0, "interrupt", signal.SIGTERM, marks=exhaustive),
        pytest.param(0, "ctrl c", signal.SIGINT, marks=exhaustive),
        pytest.param(0, "hang up", signal.SIGHUP, marks=exhaustive),
    ],
)
def test_all_stop_after_the_same_step_and_the_chief_saves_when_one_gets_a_signal(
    tmp_path, servers, pause, number
):
    before = signal.signal(number, signal.SIG_DFL)  # under nohup SIGHUP is ignored
    try:
        found = outcomes(tmp_path, 2, f"--pause={pause}", servers=servers)
    finally:
        signal.signal(number, before)
    for output, status in found[:2]:
        assert status == 128 + number, output
        assert "Traceback" not in output
    for output, status in found[2:]:
        assert status == 0, output
    assert [path.name for path in tmp_path.glob("0/*.keras")] == ["2-nan.keras"]
    assert not (tmp_path / "1").exists()


@pytest.mark.parametrize("servers", _WITH_PS)
def test_the_chief_saves_at_once_when_it_is_asked_to_end_while_another_hangs(tmp_path, servers):
    program = [sys.executable, "-m", "terngrad.testing.programs.fit", str(tmp_path), "--pause=hang"]
    with cluster(program, 2, servers) as (runs, _):
        runs[1].wait_for("^hangs$")
        runs[0].process.send_signal(signal.SIGTERM)
        saved = rf"saved {re.escape(str(tmp_path))}/0/2-nan.keras"
        runs[0].wait_for(rf"^SIGTERM: {saved}; waits for the step under way\.$")
        assert keras.saving.load_model(tmp_path / "0/2-nan.keras").optimizer.iterations == 6
        runs[1].process.kill()
        assert runs[0].finish() == LOST_STATUS, runs[0].output
        assert re.search(rf"worker 0 .*; {saved}$", runs[0].output, re.M), runs[0].output
