"""Laws of a training run, with the real programs on the repository's own digits."""

import errno
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from inception.results import report
from inception.testing.runs import as_flags
from inception.training import train
from slim.conversion import convert
from slim.datasets import dataset_info
from terngrad.cluster.errors import DifferenceError
from terngrad.coordination.client import InterruptionError
from terngrad.testing import forked
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started
from terngrad.training import checkpoints

REPO = Path(__file__).parents[2]
STEPS = 100


@pytest.fixture(scope="session", name="digits")
def _digits(made_once):
    sample = REPO / "slim" / "datasets" / "mnist_sample"
    return made_once(
        "digits", lambda folder: convert.convert("mnist", str(folder), source_dir=str(sample))
    )


def arguments(digits, train_dir, **flags):
    defaults = {
        "data_dir": digits,
        "train_dir": train_dir,
        "max_steps": STEPS,
        "batch_size": 16,
        "num_nodes": 2,
        "grad_bits": 1,
        "clip_factor": 2.5,
        "input_queue_memory_factor": 1,
        "save_iter": 10,
        "keep_checkpoints": 0,
    }
    return as_flags(defaults | flags)


def command(*args, **flags):
    return [sys.executable, "-m", "inception.mnist_train", *arguments(*args, **flags)]


def run(digits, train_dir, **flags):
    return forked.run(command(digits, train_dir, **flags))


@pytest.fixture(name="refusal")
def _refusal(train_here):
    """Runs the program in this process; returns its last line."""

    def refused(*args, **flags):
        with pytest.raises(SystemExit) as ended:
            train_here(*args, **flags)
        assert "\n" not in ended.value.code
        return ended.value.code

    return refused


def start(digits, train_dir, **flags):
    return Started(command(digits, train_dir, **flags))


def content(train_dir, step):
    reader = tf.train.load_checkpoint(os.path.join(train_dir, f"model.ckpt-{step}"))
    return {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map() if "state" in n}


def assert_same_checkpoint(left, right, step=STEPS):
    a, b = content(left, step), content(right, step)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.fixture(scope="session", name="undisturbed")
def _undisturbed(digits, made_once):
    def train(folder):
        done = run(digits, folder)
        assert (done.returncode, done.stderr) == (0, "")
        (folder / "stdout").write_text(done.stdout)

    return made_once("undisturbed", train)


@pytest.mark.slow
def test_a_line_every_ten_steps(undisturbed):
    line = (
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: step (\d+), entropy_loss = \d+\.\d\d, "
        r"reg_loss = \d+\.\d\d, total_loss = \d+\.\d\d "
        r"\(\d+\.\d examples/sec; \d+\.\d{3} sec/batch\)"
    )
    steps = [int(m[1]) for m in re.finditer(line, (undisturbed / "stdout").read_text())]
    assert steps == list(range(10, STEPS + 1, 10))


@pytest.mark.slow
def test_event_files_hold_losses_speed_bytes_and_zeros(undisturbed):
    scalars = report.read_scalars(str(undisturbed))
    for tag in ("entropy_loss", "reg_loss", "total_loss"):
        assert scalars[f"losses/{tag}"].steps == list(range(10, STEPS + 1, 10))
    assert {"learning_rate", "examples_per_sec", "bits_per_parameter"} <= scalars.keys()
    total = scalars["bytes_sent_per_step"].values[0]
    parts = [curve.values[0] for tag, curve in scalars.items() if tag.startswith("bytes_sent/")]
    assert len(parts) == 8
    assert total == pytest.approx(sum(parts))
    zeros = [curve.values[0] for tag, curve in scalars.items() if tag.startswith("zeros/")]
    assert len(zeros) == 6  # all but the two of the last layer
    assert all(0 < share < 1 for share in zeros)


@pytest.fixture(scope="module", name="interrupted")
def _interrupted(digits, tmp_path_factory):
    """A run ended by a kill and two signals: its folder, and its output after each signal."""
    folder, printed = tmp_path_factory.mktemp("interrupted"), {}
    with start(digits, folder) as training:
        training.wait_for("step 10,")  # the end of the block kills it
    for number in (signal.SIGTERM, signal.SIGINT):
        with start(digits, folder, save_iter=0) as training:
            training.wait_for(": step ")
            training.process.send_signal(number)
            status = training.finish()
        saved = checkpoints.latest_checkpoint(str(folder))
        printed[number] = status, saved, training.output
    again = run(digits, folder)
    assert again.returncode == 0, again.stderr
    return folder, printed, again.stdout


@pytest.mark.slow
def test_law_8_killed_and_started_again_equals_undisturbed(undisturbed, interrupted):
    folder, _, again = interrupted
    assert "Succesfully loaded model from " in again
    assert "other settings" not in again
    assert_same_checkpoint(undisturbed, folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_exits_and_the_run_goes_on(interrupted, number):
    status, saved, output = interrupted[1][number]
    assert status == 128 + number, output
    assert f"{number.name}: saved {saved}; the same command continues from there." in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_run_that_goes_on_with_other_settings_names_them(
    digits, undisturbed, tmp_path, train_here
):
    path = checkpoints.latest_checkpoint(str(undisturbed))
    for file in Path(path).parent.glob(f"{Path(path).name}.*"):
        shutil.copy(file, tmp_path)
    again = train_here(digits, tmp_path, max_steps=STEPS + 1, batch_size=32, seed=2, num_nodes=4)
    assert (
        f"The run continues with other settings than those of {tmp_path / Path(path).name}: "
        "batch_size = 32 (was 16), num_nodes = 4 (was 2), seed = 2 (was 1).\n"
    ) in again
    assert (tmp_path / f"model.ckpt-{STEPS + 1}.index").exists()


@pytest.mark.slow
def test_steps_in_float_epochs_are_float(digits, tmp_path, train_here):
    flags = {"net": "mlp", "max_steps": 30, "batch_size": 1000, "save_summaries_secs": 1e-6}
    train_here(digits, tmp_path, floating_grad_epoch=2, **flags)
    bits = report.read_scalars(str(tmp_path))["bits_per_parameter"]
    ternary = [step for step, b in zip(bits.steps, bits.values, strict=True) if b < 3]
    assert ternary == [*range(1, 11), *range(21, 31)]  # an epoch has 10 steps


def test_what_was_saved_and_from_where_the_same_command_goes_on(tmp_path):
    (tmp_path / "model.ckpt-40.index").touch()
    saved = f"{tmp_path}/model.ckpt-40"
    assert train.how_to_go_on(saved) == f"saved {saved}; the same command continues from there"
    (tmp_path / "model.ckpt-90.index").touch()  # its state was lost with a ps
    later = f"continues from {tmp_path}/model.ckpt-90, which is of a later step"
    assert train.how_to_go_on(saved).endswith(later)


@pytest.mark.parametrize(
    ("checkpoint", "saved_by", "text"),
    [
        (None, 0, "worker 0 saved; the same command continues from there"),
        ("/a/model.ckpt-9", 0, "saved /a/model.ckpt-9; the same command continues from there"),
        (None, 1, "worker 1 saved; the same command continues from there if worker 0 finds it"),
        (
            "/a/model.ckpt-9",
            1,
            "worker 1 saved /a/model.ckpt-9; the same command continues from there if worker 0 "
            "finds it",
        ),
    ],
)
def test_the_last_line_after_a_signal_says_which_worker_saved(checkpoint, saved_by, text):
    assert train.stopped_text(checkpoint, saved_by) == text


def ended(*found):
    """Ends a training whose comparisons find this in turn; returns its result and what it did."""
    training = types.SimpleNamespace(state={"variables/w": tf.Variable([1.0])}, step=7)
    done, results = [], iter(found)

    def compare(configuration):
        done.append("compare")
        if error := next(results):
            raise error(f"{', '.join(configuration)} differ")

    def synchronize(shared):
        done.append("synchronize")
        training.step += 1

    group = types.SimpleNamespace(compare=compare, synchronize=synchronize)
    prepared = types.SimpleNamespace(training=training, group=group, connection=object(), shared=[])
    save = lambda step: done.append(f"save {step}") or f"model.ckpt-{step}"
    return train._save_and_compare(prepared, types.SimpleNamespace(save=save)), done


def test_copies_that_differ_at_the_end_are_reported(capsys):
    assert ended(DifferenceError) == ("model.ckpt-7", ["save 7", "compare"])
    assert "Warning: the workers' copies differ: parameters at the end" in capsys.readouterr().out


def test_the_last_state_is_saved_before_each_comparison_that_may_be_the_last():
    made = ["save 7", "compare", "synchronize", "save 8", "compare"]
    assert ended(InterruptionError, None) == ("model.ckpt-8", made)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run(digits, tmp_path, refusal):
    flags = {"initial_learning_rate": 1e30, "save_iter": 1, "max_steps": 20, "net": "mlp"}
    said = refusal(digits, tmp_path, **flags)
    assert re.fullmatch(
        r"mnist_train: step \d+(:| is not saved:) .*(nan|inf|not finite|NaN).*", said
    )
    assert "model.ckpt" in said or "none was written yet" in said


@pytest.mark.slow
def test_a_signal_while_the_first_step_is_compiled_ends_at_once(digits, tmp_path):
    with start(digits, tmp_path, max_steps=100_000) as run:
        run.wait_for("Building the training step of")
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 128 + signal.SIGINT
    assert "SIGINT: stopped before the first step of this run; nothing is lost." in run.output
    assert "Traceback" not in run.output and not checkpoints.latest_checkpoint(str(tmp_path))


@pytest.mark.slow
def test_towers_run_on_logical_cpu_devices(digits, tmp_path):
    done = run(digits, tmp_path, num_gpus=2, num_nodes=4, max_steps=10, net="mlp")
    assert done.returncode == 0, done.stderr
    assert "the 2 towers are logical CPU devices" in done.stdout
    assert "4 nodes x 4 images" in done.stdout


@pytest.mark.slow
def test_a_run_goes_on_from_the_newest_checkpoint_that_is_not_damaged(
    digits, undisturbed, tmp_path, train_here, refusal
):
    def damage(step):
        with open(tmp_path / f"model.ckpt-{step}.data-00000-of-00001", "r+b") as file:
            file.seek(1000)
            byte = file.read(1)[0]
            file.seek(1000)
            file.write(bytes([byte ^ 64]))

    for step in (STEPS - 20, STEPS - 10, STEPS):
        for file in undisturbed.glob(f"model.ckpt-{step}.*"):
            shutil.copy(file, tmp_path)
    damage(STEPS)
    damage(STEPS - 10)
    said = train_here(digits, tmp_path)
    for step in (STEPS, STEPS - 10):
        why = rf"{tmp_path}/model.ckpt-{step} is damaged: .*data-0.* has another SHA-256 digest .*"
        assert re.search(rf"^{why}; set aside as {tmp_path}/damaged\.model", said, re.MULTILINE)
    assert f"from {tmp_path}/model.ckpt-{STEPS - 20} at step={STEPS - 20}." in said
    assert_same_checkpoint(undisturbed, tmp_path)
    for step in (STEPS - 20, STEPS - 10, STEPS):
        damage(step)
    assert "no checkpoint is undamaged (model.ckpt-100: " in refusal(digits, tmp_path)


@pytest.mark.slow
def test_a_full_disk_ends_the_summaries_and_not_the_training(digits, tmp_path):
    def allow_bytes(limit):
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    flags = {"net": "mlp", "max_steps": 1_000_000, "save_iter": 0, "save_summaries_secs": 0.1}
    with start(digits, tmp_path, **flags) as run:
        run.wait_for("step 10,")
        allow_bytes(1000)
        assert "File too large" in run.wait_for("^No more summaries are written: ")
        run.wait_for("step 200,")
        allow_bytes(resource.RLIM_INFINITY)
        run.process.send_signal(signal.SIGTERM)
        assert run.finish() == 128 + signal.SIGTERM
    assert "Traceback" not in run.output and run.output.count("No more summaries") == 1
    assert checkpoints.latest_checkpoint(str(tmp_path))


@pytest.mark.slow
def test_a_closed_terminal_ends_a_training_as_a_hangup_does(digits, tmp_path):
    terminal, end = os.openpty()
    flags = {"net": "mlp", "max_steps": 1_000_000, "save_iter": 0}
    shown = b""
    with subprocess.Popen(
        command(digits, tmp_path, **flags), stdin=subprocess.DEVNULL, stdout=end, stderr=end
    ) as process:
        os.close(end)
        while b"step 40," not in shown:
            shown += os.read(terminal, 10_000)  # raises OSError if the program has ended
        os.close(terminal)
        assert process.wait(HANG_SECS) == 128 + signal.SIGHUP
    assert checkpoints.latest_checkpoint(str(tmp_path))


@pytest.mark.slow
def test_a_full_disk_beneath_the_log_does_not_end_the_training(digits, tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(digits, tmp_path, net="mlp", max_steps=20),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=HANG_SECS,
        )
    assert (done.returncode, checkpoints.latest_checkpoint(str(tmp_path))) == (
        0,
        f"{tmp_path}/model.ckpt-20",
    )
    said = b"Lines cannot be printed: No space left on device; the process goes on.\n"
    assert done.stderr == said


@pytest.mark.slow
def test_law_10_a_damaged_record_is_named(digits, tmp_path, refusal):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in digits.iterdir():
        data = bytearray(file.read_bytes())
        if file.name.startswith("train"):
            data[len(data) // 20] ^= 0xFF  # within the pool of the first steps
        (broken / file.name).write_bytes(data)
    said = refusal(broken, tmp_path / "train", net="mlp")
    assert re.search(r"train-mnist\.tfrecord: record \d+ at byte \d+ is damaged", said)


@pytest.mark.slow
def test_a_damaged_record_loses_no_whole_step(digits, tmp_path, refusal, train_here, capsys):
    broken, flags = tmp_path / "broken", {"net": "mlp", "batch_size": 1000, "save_iter": 0}
    shutil.copytree(digits, broken)
    with open(broken / "train-mnist.tfrecord", "r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(b"damage")
    said = refusal(broken, tmp_path / "stopped", **flags)
    saved = re.search(r"is damaged \(.*\); saved (\S+/stopped/model\.ckpt-(\d+))$", said)
    assert saved and saved[1] == checkpoints.latest_checkpoint(str(tmp_path / "stopped"))
    # The search takes long where there are many records: a kill then must not lose the steps.
    said = capsys.readouterr().out
    assert f"Looking for the damaged record in 1 files; saved {saved[1]}.\n" in said
    step = int(saved[2])
    train_here(digits, tmp_path / "whole", **flags | {"max_steps": step})
    assert_same_checkpoint(tmp_path / "whole", tmp_path / "stopped", step)


@pytest.mark.slow
def test_two_trainings_do_not_share_a_folder(digits, tmp_path, refusal):
    flags = {"net": "mlp", "max_steps": 1_000_000, "save_iter": 0}
    with start(digits, tmp_path, **flags) as first:
        first.wait_for("step 10,")
        said = refusal(digits, tmp_path, **flags)
    assert f"another training, process {first.process.pid} on {socket.gethostname()}" in said


def test_law_10_a_folder_that_is_full_at_the_start_is_named(digits, tmp_path, refusal, monkeypatch):
    def write_labels(folder, names):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # names no file, as a write does

    monkeypatch.setattr(dataset_info, "write_labels", write_labels)
    said = refusal(digits, tmp_path, net="mlp")
    assert f"flag --train_dir={tmp_path}: is not writable (No space left on device)" in said


@pytest.mark.slow
@pytest.mark.parametrize("steps", ["2,6", pytest.param("2,1000", marks=pytest.mark.exhaustive)])
def test_a_profile_is_written_whichever_comes_first(digits, tmp_path, steps, train_here):
    printed = train_here(digits, tmp_path, max_steps=10, profile_steps=steps, net="mlp")
    assert f"Profile for TensorBoard: {tmp_path}" in printed
    assert "--profile_steps" not in printed
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


def test_a_run_that_ends_before_its_profile_says_so(digits, tmp_path, train_here):
    flags = {"benchmark_mode": True, "save_summaries_secs": 0, "net": "mlp"}
    printed = train_here(digits, tmp_path, max_steps=1, profile_steps="1,2", **flags)
    assert "--profile_steps: no step is profiled; the run ends at step 1.\n" in printed


@pytest.mark.slow
def test_law_8_neither_summaries_nor_packing_change_a_bit(
    digits, undisturbed, tmp_path, train_here
):
    train_here(digits, tmp_path, max_steps=20, save_summaries_secs=0, use_encoding=False)
    assert not list(tmp_path.glob("events*"))
    assert_same_checkpoint(undisturbed, tmp_path, step=20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "max_bits"), [({"grad_bits": 16}, 16), ({"scaler_sharing": False}, 3)]
)
def test_a_run_is_observed_in_half_precision_and_with_own_scales(
    digits, tmp_path, flags, max_bits, train_here
):
    train_here(digits, tmp_path, max_steps=20, net="mlp", **flags)
    first, last = report.read_scalars(str(tmp_path))["bits_per_parameter"].values
    assert max_bits - 1 < first == last <= max_bits


@pytest.mark.parametrize(("before", "after", "held"), [(5, 5, 5), (5, 5, 4), (5, 9, 5), (5, 0, 5)])
def test_only_a_worker_that_lacks_the_batch_of_its_step_reads_its_batches_anew(
    monkeypatch, before, after, held
):
    step, forgotten = tf.Variable(before), []
    prepared = types.SimpleNamespace(
        connection=types.SimpleNamespace(was_interrupted=lambda: True),
        training=types.SimpleNamespace(
            step=step,
            memory=types.SimpleNamespace(variables={}),
            exchange=types.SimpleNamespace(owner=None),
            last_batch=types.SimpleNamespace(
                holds=lambda step: step == held, forget=lambda: forgotten.append(int(step))
            ),
        ),
        config=None,
        group=types.SimpleNamespace(synchronize=lambda state: step.assign(after)),
        shared=[],
    )
    monkeypatch.setattr(train, "worker_batches", lambda *arguments: [arguments[-1]])
    at, batches = train._recovered(prepared)
    assert at == after
    anew = [after] if after != held else []
    assert list(batches or ()) == forgotten == anew
