"""Training on several workers: laws 4 and 8, and what happens when one of them is lost."""

import os
import re
import signal

import numpy as np
import pytest

from inception.cluster import members
from inception.results import report
from inception.testing.runs import (
    LONGER,
    HorovodRun,
    MpiRun,
    Run,
    assert_equal_parameters,
    commands_of,
    flags_of,
    paced_flags_of,
    parameters,
    refusal,
    tls_flags,
    train,
    worker_pids,
)
from slim.testing import write_digits
from terngrad.testing.addresses import free_ports
from terngrad.testing.certificates import make_certificates
from terngrad.testing.processes import Started, finished, unread_after
from terngrad.training import checkpoints

MPIRUN = pytest.param("mpirun", marks=pytest.mark.exhaustive)


@pytest.mark.slow
def test_law_4_the_spread_of_nodes_over_workers_changes_no_bit(tmp_path, four_nodes):
    assert_equal_parameters(four_nodes, train(4, tmp_path, batch_size=2))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_law_4_holds_for_the_net_of_cifar10(tmp_path):
    settings = {"net": "cifar10_alexnet", "steps": 10}
    alone = train(1, tmp_path / "alone", batch_size=4, nodes=2, **settings)
    assert_equal_parameters(alone, train(2, tmp_path / "spread", batch_size=2, **settings))


def encrypted(folder, program, flags, *options):
    """A training of two workers that encrypt what they send."""
    return Run(2, program, [*flags, *tls_flags(make_certificates(folder, "ours", "all"))], options)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_law_4_holds_for_reference_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("TERNGRAD_KERNELS", "reference")
    alone = train(1, tmp_path / "alone", batch_size=8, nodes=4)
    assert_equal_parameters(alone, train(2, tmp_path / "spread", batch_size=4, nodes=2))


ENGINES = {
    "collective": encrypted,
    "ps": lambda *program: encrypted(*program, "--ps=2"),
    "mpi": lambda _, *program: MpiRun(2, *program),
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_laws_4_and_7_each_engine_has_the_bits_of_one_process_and_reports_its_bytes(
    tmp_path, four_nodes, engine
):
    folder = tmp_path / "train"
    program, flags = flags_of(folder, batch_size=4, nodes=2, summary_secs=1e-6)
    with ENGINES[engine](tmp_path, program, [*flags, "--predict"]) as run:
        output = run.succeed()
    # Neither the chief's summaries nor the prediction change a bit.
    assert_equal_parameters(four_nodes, parameters(folder))
    if engine != "mpi":
        assert_bytes_are_reported(output, report.read_scalars(str(folder)))
    assert len(re.findall(r"Prediction: ternary \d+\.\d x \w+ than float32 on this", output)) == 1
    if engine == "ps":
        assert re.search(r"^\[ps 0\] PS hosts are: \['127.0.0.1:\d+'", output, re.MULTILINE)
        assert re.search(r"^\[1\] Worker hosts are: \['127.0.0.1:\d+', ", output, re.MULTILINE)
        replicas = "replicas_to_aggregate=2; total_num_replicas=2"
        assert f"[0] SyncReplicas enabled: {replicas}" in output
        for ps in (0, 1):
            assert re.search(rf"\[ps {ps}\] .* ends: all workers are done", output)


def assert_bytes_are_reported(output, scalars):
    """Asserts that both workers reported how many bytes they send at most, and have sent."""
    (limit,) = set(re.findall(r"each worker sends at most (\d+) bytes a step", output))
    found = re.findall(r"Sent (\d+) bytes a step, ([\d.]+) bits a parameter", output)
    assert len(found) == 2, output
    (size,) = set(re.findall(r"lenet: (\d+) parameters", output))
    for sent, bits in found:
        assert 0.1 * int(limit) < int(sent) < int(limit)
        assert 8 * int(sent) / int(size) == pytest.approx(float(bits), rel=0.01)
    measured = scalars["bytes_sent_per_step"].values
    assert min(measured) > 0
    sent = [int(sent) for sent, _ in found]
    assert min(sent) * 0.8 < sum(measured) / len(measured) < max(sent) * 1.25
    parts = [curve.values[0] for tag, curve in scalars.items() if tag.startswith("bytes_sent/")]
    assert sum(parts) == pytest.approx(int(limit))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["horovodrun", MPIRUN])
def test_law_4_horovod_gives_the_bits_of_one_process(
    tmp_path, horovod_command, launcher, four_nodes
):
    program, flags = flags_of(tmp_path, batch_size=4, nodes=2)
    with HorovodRun(horovod_command(launcher, 2), program, flags) as run:
        run.succeed()
    assert_equal_parameters(four_nodes, parameters(tmp_path))


@pytest.mark.slow
def test_law_6_float_gradients_of_workers_equal_those_of_the_whole_batch(tmp_path):
    # The rate makes the first gradients what the parameters consist of after one step.
    alike = ["--dropout_keep_prob=1.0", "--weight_decay=0", "--initial_learning_rate=1000"]

    def after_a_step(workers, bits=32):
        folder = tmp_path / f"{workers}x{bits}"
        program, flags = flags_of(folder, batch_size=16 // workers, bits=bits, steps=1)
        with Run(workers, program, [*flags, *alike, "--optimizer=gd"]) as run:
            run.succeed()
        found = parameters(folder, 1)
        return {name: found[name] for name in found if "/variables." in name}

    whole, spread, ternary = after_a_step(1), after_a_step(2), after_a_step(1, bits=1)
    for name, value in whole.items():
        tolerance = 1e-5 * np.abs(value).max()
        np.testing.assert_allclose(spread[name], value, rtol=0, atol=tolerance, err_msg=name)
    kernels = [name for name in whole if "kernel" in name and "logits" not in name]
    assert len(kernels) == 3
    assert not any(np.allclose(ternary[name], whole[name], rtol=0.1) for name in kernels)


@pytest.mark.slow
def test_a_worker_whose_lines_nobody_reads_any_more_ends_all_and_nothing_is_lost(tmp_path):
    program, flags = paced_flags_of(tmp_path)
    chief, other = commands_of(program, flags, members.worker_flags(2, free_ports))
    with Started(chief) as run, Started(unread_after("step 10,", other)) as piped:
        assert piped.finish() == 128 + signal.SIGPIPE, piped.output
        assert run.finish() == 128 + signal.SIGTERM, run.output
    saved = re.search(r"another worker was asked to stop: saved (\S+);", run.output)[1]
    assert checkpoints.latest_checkpoint(str(tmp_path)) == saved


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("launcher", ["horovodrun", "mpirun"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_ends_horovod(tmp_path, horovod_command, launcher, victim):
    program, flags = paced_flags_of(tmp_path)
    with HorovodRun(horovod_command(launcher, 2), program, flags) as run:
        run.wait_for(r"Worker 0: .* step 10,")
        pids = worker_pids(tmp_path)
        os.kill(pids[victim], signal.SIGKILL)
        assert run.finish() != 0
    assert not worker_pids(tmp_path)
    if launcher == "horovodrun":  # mpirun ends the other before it can say a word
        other = f"[{1 - victim}]<stderr>:"
        said = "\n".join(line for line in run.lines if line.startswith(other))
        last = rf"worker {1 - victim} .* ends: worker {victim} .* died: its connection closed"
        assert re.search(last, said), said
        assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_worker_that_hangs_ends_horovod(tmp_path, horovod_command):
    program, flags = paced_flags_of(tmp_path)
    command = horovod_command("horovodrun", 2)
    with HorovodRun(command, program, [*flags, "--worker_timeout_secs=15"]) as run:
        run.wait_for(r"Worker 0: .* step 10,")
        os.kill(worker_pids(tmp_path)[1], signal.SIGSTOP)
        run.wait_for(r"worker 0 .* ends: worker 1 .* hangs: it sent nothing")
        assert run.finish() != 0
    assert not worker_pids(tmp_path)  # also the one that hung


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "must be started by mpirun of mpi4py's MPI: no launcher started this process"),
        ({"HOROVOD_SIZE": "2"}, "2 processes were started, but this one sees 1"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI's mpirun .* has loaded MPICH|this one sees 1"),
        ({"MPI4PY_LIBMPI": "/no/libmpi.so"}, "needs mpi4py and an MPI library"),
    ],
)
def test_law_10_mpi_that_would_train_alone_or_not_at_all_is_reported(environment, why):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install '.[mpi]'")
    said = refusal("--variable_update=mpi", "--benchmark_mode", **environment)
    assert re.search(rf"flag --variable_update=mpi: .*({why})", said), said


@pytest.mark.slow
def test_law_10_horovod_that_is_not_installed_is_named(tmp_path):
    (tmp_path / "horovod.py").write_text("raise ModuleNotFoundError('there is none')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    said = refusal("--variable_update=horovod", "--benchmark_mode", PYTHONPATH=path)
    assert (
        "flag --variable_update=horovod: needs Horovod, bash scripts/install_horovod.sh "
        "(there is none)"
    ) in said


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_law_8_a_killed_worker_ends_the_others_by_name_and_a_restart_loses_nothing(
    tmp_path, victim, undisturbed
):
    program, flags = paced_flags_of(tmp_path, "--save_iter=10", steps=LONGER)
    with Run(3, program, flags, ["--max_restarts=1"]) as run:
        run.wait_for(r"Worker 0: .* step 20,")
        os.kill(worker_pids(tmp_path)[victim], signal.SIGKILL)
        for other in {0, 1, 2} - {victim}:
            run.wait_for(
                rf"^\[{other}\] worker {other} .* ends: worker {victim} \(127.0.0.1:\d+\) died"
            )
        run.wait_for("Restart 1 of 1")
        run.succeed()
    assert_equal_parameters(undisturbed, parameters(tmp_path, LONGER))


@pytest.fixture(scope="module", name="unequal_shares")
def _unequal_shares(tmp_path_factory):
    """Two folders of records of other sizes: each worker's own."""
    folders = []
    for i, count in enumerate((64, 32)):
        folders.append(tmp_path_factory.mktemp(f"worker{i}"))
        write_digits(folders[i], count)
    return folders


def owners(folders):
    """Flags of two workers, each with records of its own."""
    both = zip(folders, members.worker_flags(2, free_ports), strict=True)
    return [[*who, f"--data_dir={folder}"] for folder, who in both]


@pytest.mark.slow
def test_law_4_workers_with_unequal_shares_stay_copies_of_each_other(tmp_path, unequal_shares):
    program, flags = flags_of(tmp_path, net="mlp", steps=18)
    flags.remove("--benchmark_mode=True")
    # An epoch of both shares has 6 steps; the rate and the kind of gradients follow from it.
    flags += ["--split_data=False", "--optimizer=momentum", "--learning_rate_decay_factor=0.94"]
    flags += ["--num_epochs_per_decay=1", "--floating_grad_epoch=2"]
    ran = finished(commands_of(program, flags, owners(unequal_shares)))
    for output, status in ran:
        assert status == 0, output
        assert "Finished training at step 18" in output
        assert "copies differ" not in output
    assert "times 0.94 every 6 steps" in ran[0][0]


@pytest.mark.slow
def test_law_10_workers_that_should_share_records_but_have_others_are_named(
    tmp_path, unequal_shares
):
    program, flags = flags_of(tmp_path, batch_size=8)
    flags.remove("--benchmark_mode=True")
    ran = finished(commands_of(program, flags, owners(unequal_shares)))
    for output, status in ran:
        assert status == 1
        assert re.search(r"data_dir is 32 images, .* on worker 1 .* and 64 images", output), output


@pytest.mark.slow
def test_law_10_workers_with_other_flags_are_named(tmp_path):
    program, flags = flags_of(tmp_path)
    sizes = [
        [*who, f"--batch_size={n}"]
        for who, n in zip(members.worker_flags(2, free_ports), (4, 8), strict=True)
    ]
    for output, status in finished(commands_of(program, flags, sizes)):
        assert status == 1
        assert re.search(r"batch_size is 8 on worker 1 \(.*\) and 4 on worker 0", output), output
        assert "Traceback" not in output
