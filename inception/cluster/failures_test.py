"""What the others do and say when a worker is lost, hangs, or is only slow: with real processes."""

import os
import re
import signal
import socket
import textwrap
import time

import pytest

from inception.cluster import members
from inception.testing.runs import (
    LONGER,
    MpiRun,
    Run,
    assert_equal_parameters,
    commands_of,
    flags_of,
    paced_flags_of,
    train,
    worker_pids,
)
from terngrad.testing.addresses import free_ports
from terngrad.testing.processes import finished


def module_in(folder, monkeypatch, source):
    """The name of a program that is written to a folder for the workers to run."""
    (folder / "changed_train.py").write_text(textwrap.dedent(source))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.getcwd()]))
    return "changed_train"


@pytest.mark.slow
def test_a_pause_below_the_time_out_loses_nobody_and_one_signal_ends_all(
    tmp_path,
):
    with Run(2, *paced_flags_of(tmp_path)) as run:
        run.wait_for(r"Worker 0: .* step 10,")
        paused = worker_pids(tmp_path)[1]
        os.kill(paused, signal.SIGSTOP)
        time.sleep(7.0)  # longer than the pause between two signs of life
        os.kill(paused, signal.SIGCONT)
        step = max(int(n) for n in re.findall(r"Worker 0: .* step (\d+),", run.output))
        run.wait_for(rf"Worker 0: .* step {step + 50},")
        os.kill(paused, signal.SIGTERM)
        assert run.finish() == 128 + signal.SIGTERM, run.output
    assert any("saved" in line and "model.ckpt-" in line for line in run.lines), run.lines


BLOCKED = """
    import itertools
    import time
    from inception import programs
    from inception.training import batches, preparation

    original = preparation.training_batches

    def training_batches(config, problem, dataset, step, index, count):
        made = itertools.count()

        def pause():
            if next(made) == 30 and index == {index}:
                time.sleep(1000)

        return batches.paced(original(config, problem, dataset, step, index, count), pause)

    preparation.training_batches = training_batches
    if __name__ == "__main__":
        programs.train_distributed("mnist", "")
"""


@pytest.mark.slow
def test_law_8_who_is_asked_to_end_while_another_hangs_saves_at_once(
    tmp_path, monkeypatch, undisturbed
):
    module = module_in(tmp_path, monkeypatch, BLOCKED.format(index=1))
    settings = {"net": "mlp", "steps": LONGER}
    _, flags = flags_of(tmp_path / "train", batch_size=2, **settings)
    with Run(3, module, [*flags, "--worker_timeout_secs=200"]) as run:
        run.wait_for(r"Worker 1: .* step 30,")
        chief, other = (worker_pids(tmp_path / "train")[rank] for rank in (0, 1))
        os.kill(chief, signal.SIGTERM)
        saved = rf"saved {re.escape(str(tmp_path))}/train/model.ckpt-30"
        run.wait_for(rf"\[0\] SIGTERM: {saved}; waits for the step under way\.$")
        os.kill(other, signal.SIGKILL)
        run.wait_for(rf"\[0\] worker 0 .* ends: worker 1 \(.*\) died.*; {saved}$")
        assert run.finish() == 1
    resumed = train(1, tmp_path / "train", batch_size=6, nodes=3, **settings)
    assert_equal_parameters(resumed, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "victim"),
    [(signal.SIGKILL, 0), pytest.param(signal.SIGSTOP, 1, marks=pytest.mark.exhaustive)],
)
def test_a_lost_process_of_mpi_is_named_and_ends_the_others(tmp_path, how, victim):
    with MpiRun(2, *paced_flags_of(tmp_path, "--worker_timeout_secs=15")) as run:
        run.wait_for(r"Worker 0: .* step 10,")
        os.kill(worker_pids(tmp_path)[victim], how)
        if how == signal.SIGSTOP:
            lost = rf"worker {victim} \(.*\) hangs: it sent nothing"
            run.wait_for(rf"worker \d .* ends: {lost}")
        else:  # MPI may notice it, and end all, before anybody can say which it was
            run.wait_for(rf"worker \d .* ends: worker {victim} \(.*\) died|BAD TERM|^Abort")
        assert run.finish() != 0
    assert not worker_pids(tmp_path)  # also the one that hung


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_law_10_a_port_that_a_worker_cannot_have_is_named_to_all(tmp_path, victim):
    program, flags = flags_of(tmp_path, batch_size=2)
    both = members.worker_flags(2, free_ports)
    address = both[0][0].partition("=")[2].split(",")[victim]
    with socket.create_server(("", int(address.rpartition(":")[2]))):
        found = finished(commands_of(program, flags, both))
    for output, status in found:
        assert status == 1
        why = f"must name free ports of the workers: cannot listen at {address}: "
        assert why in output, output
        assert "Traceback" not in output
    assert re.search(
        f"worker {1 - victim} .* ends: worker {victim} .* failed: ", found[1 - victim][0]
    )
