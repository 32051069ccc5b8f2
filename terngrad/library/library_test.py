"""Own training loops with the library, on one process and on two."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from terngrad.cluster.membership import LOST_STATUS
from terngrad.library.joining import join
from terngrad.testing.addresses import free_ports
from terngrad.testing.certificates import make_certificates, make_launched_certificates
from terngrad.testing.processes import Started, finished, launch_environments, mpirun

exhaustive = pytest.mark.exhaustive
FAILED = (1, LOST_STATUS)  # exit statuses: by itself, or because of another


def outcomes(tmp_path, processes, *options):
    """Runs the loop on several processes; returns their outputs and statuses."""
    program = [
        sys.executable,
        "-m",
        "terngrad.testing.programs.own_loop",
        str(tmp_path / "x.npz"),
        *options,
    ]
    return finished([program] * processes, launch_environments(processes))


def in_tf_config(processes):
    """Returns environments; the chief's control port, 1000 above its own, may be used, too."""
    ports = [0xFFFF]
    while max(ports) > 31000:
        ports = free_ports(processes, "127.0.0.1")
    hosts = [f"127.0.0.1:{port}" for port in ports]
    tasks = [{"type": "worker", "index": rank} for rank in range(processes)]
    return [
        {"TF_CONFIG": json.dumps({"cluster": {"worker": hosts}, "task": task})} for task in tasks
    ]


def succeed(tmp_path, processes, *options):
    for output, status in outcomes(tmp_path, processes, *options):
        assert status == 0, output


def snippet(text, *arguments):
    return [sys.executable, "-m", "terngrad.testing.programs.snippet", text, *arguments]


def written(tmp_path, rank=0):
    with np.load(tmp_path / f"{rank}x.npz") as file:
        return dict(file)


@pytest.fixture(scope="module", name="alone")
def _alone(tmp_path_factory):
    """What one process of two nodes writes."""
    folder = tmp_path_factory.mktemp("alone")
    succeed(folder, 1, "--nodes=2")
    return written(folder)


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key], key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "starter"),
    [
        (("--by_arguments",), "the launcher"),
        pytest.param(("--eager",), "TF_CONFIG", marks=exhaustive),
    ],
)
def test_law_4_two_processes_of_a_node_and_one_of_two_nodes_give_the_same_bits(
    tmp_path, monkeypatch, alone, options, starter
):
    if starter == "TF_CONFIG":
        monkeypatch.setattr(sys.modules[__name__], "launch_environments", in_tf_config)
    succeed(tmp_path, 2, *options)
    together = written(tmp_path), written(tmp_path, rank=1)
    if "--eager" in options:  # a graph rounds differently
        succeed(tmp_path, 1, "--nodes=2", *options)
        alone = written(tmp_path)
    for found in together:
        assert_equal(alone, found)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [pytest.param(0, marks=exhaustive), 1])
def test_two_reducers_do_not_disturb_each_other_and_a_differing_seed_is_named(servers):
    program = [sys.executable, "-m", "terngrad.testing.programs.two_nets"]
    found = finished([program] * (2 + servers), launch_environments(2, servers))
    assert [status for _, status in found] == [0] * len(found), found
    for output, _ in found[:2]:
        assert re.search(r"seed of the reducer is 1 on worker 1 \S+ and 0 on worker 0", output), (
            output
        )


@pytest.mark.slow
@exhaustive
def test_law_4_mpi_gives_the_same_bits(tmp_path, alone):
    program = [*mpirun(2), "-m", "terngrad.testing.programs.own_loop", str(tmp_path / "x.npz")]
    with Started(program) as run:
        run.succeed()
    assert_equal(alone, written(tmp_path, rank=1))


@pytest.mark.slow
@exhaustive
def test_a_worker_of_mpi_that_fails_shows_its_error_once(tmp_path):
    program = [
        *mpirun(2),
        "-m",
        "terngrad.testing.programs.own_loop",
        str(tmp_path / "x"),
        "--end=fail",
    ]
    with Started(program) as run:
        assert run.finish() == 1, run.output
    assert run.output.count("Traceback") == 1, run.output
    assert re.search(r"worker 1 \(\S+\) ends: 'a mistake'", run.output), run.output


@pytest.mark.slow
def test_the_tasks_of_a_slurm_step_on_one_node_need_no_certificates(tmp_path):
    program = [sys.executable, "-m", "terngrad.testing.programs.own_loop", str(tmp_path / "x.npz")]
    step = {  # as Slurm 22.05 sets it: srun -n 2
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "node1.invalid",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": "0,1",
    }
    tasks = [step | {"SLURM_PROCID": str(task)} for task in (0, 1)]
    for output, status in finished([program] * 2, tasks):
        assert status == 0, output
    assert_equal(written(tmp_path), written(tmp_path, rank=1))


def served(tmp_path, *options):
    """Runs two workers and a ps, which TF_CONFIG describes."""
    *workers, ps = [f"127.0.0.1:{port}" for port in free_ports(3, "127.0.0.1")]
    program = [
        sys.executable,
        "-m",
        "terngrad.testing.programs.own_loop",
        str(tmp_path / "x.npz"),
        *options,
    ]
    places = [("worker", 0), ("worker", 1), ("ps", 0)]
    config = lambda kind, index: json.dumps(
        {"cluster": {"worker": workers, "ps": [ps]}, "task": {"type": kind, "index": index}}
    )
    return finished([program] * 3, [{"TF_CONFIG": config(*place)} for place in places])


@pytest.mark.slow
def test_law_4_parameter_servers_of_tf_config_give_the_same_bits_over_tls(tmp_path, alone):
    tls = make_certificates(tmp_path, "authority", "all")
    for output, status in served(tmp_path, "--tls", tls.ca, tls.cert, tls.key):
        assert status == 0, output
    assert "waits for 2 workers who have certificates" in output
    assert_equal(alone, written(tmp_path, rank=1))


@pytest.mark.slow
def test_law_4_all_reduce_with_the_launchers_certificates_gives_the_same_bits(
    tmp_path, monkeypatch, alone
):
    folder = tmp_path / "certificates"
    folder.mkdir()
    make_launched_certificates(folder)
    monkeypatch.setenv("TERNGRAD_CERTIFICATES", str(folder))
    succeed(tmp_path, 2)
    assert_equal(alone, written(tmp_path, rank=1))
    (folder / "127.0.0.1.key").unlink()
    with pytest.raises(ValueError, match=r"join: tls: key is '.*127.0.0.1.key': cannot be read"):
        join(["127.0.0.1:1", "127.0.0.1:2"], rank=0)


@pytest.mark.slow
def test_a_worker_of_parameter_servers_that_fails_is_named(tmp_path):
    (chief, status), (_, other), (ps, of_ps) = served(tmp_path, "--end=fail")
    assert (status, other, of_ps) == (LOST_STATUS, 1, LOST_STATUS), chief + ps
    assert re.search(r"worker 1 \(127.0.0.1:\d+\) failed: 'a mistake'", chief), chief


@pytest.mark.slow
@exhaustive
def test_a_worker_of_parameter_servers_that_leaves_early_is_named(tmp_path):
    (chief, status), (_, other), (ps, of_ps) = served(tmp_path, "--end=leave")
    assert status in FAILED and (other, of_ps) == (0, LOST_STATUS), chief + ps
    why = r"worker 1 \S+ left after \d+ operations with the others, of which worker 0 \S+ has begun"
    assert re.search(rf"worker 0 \S+ ends: .*{why}", chief), chief


HOOK = """
import sys, time, terngrad
group = terngrad.join(timeout_secs=20.0)
if sys.argv[1] == "own hook":
    sys.excepthook = lambda kind, error, _: print("shown:", error, file=sys.stderr, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "call"),
    [("none", "barrier()"), pytest.param("own hook", "all_gather(1)", marks=exhaustive)],
)
def test_the_loss_of_a_worker_is_shown_once_over_parameter_servers(hook, call):
    program = snippet(f"{HOOK}group.rank or group.{call}", hook)
    (chief, status), *_ = finished([program] * 3, launch_environments(2, servers=1))
    assert status in FAILED, chief
    begin = "shown: " if hook == "own hook" else r"worker 0 \S+ ends: "
    assert re.search(rf"^{begin}worker 1 \S+ left after 0 operations", chief, re.M), chief
    assert chief.count("left after 0 operations") == 1, chief


@pytest.mark.slow
@pytest.mark.parametrize("hook", [pytest.param("own hook", marks=exhaustive), "none"])
def test_an_error_under_mpirun_is_shown_once(hook):
    text = HOOK + "if group.rank == 1: raise RuntimeError('a mistake')\ntime.sleep(20)"
    with Started([*mpirun(2), "-c", text, hook]) as run:
        assert run.finish() != 0
    shown = "RuntimeError: a mistake" if hook == "none" else "shown: a mistake"
    assert run.output.count("Traceback (most recent call last)") == (hook == "none"), run.output
    assert run.output.count(shown) == 1, run.output
    assert re.search(r"worker 1 \S+ ends: a mistake", run.output), run.output


DIVERGING = """
import sys, terngrad, tensorflow as tf
group = terngrad.join(timeout_secs=20.0)
weights = [tf.Variable([1.0, 2.0])]
reducer, other = (terngrad.Reducer(weights, group, gradients="ternary") for _ in range(2))
group.rank or eval(sys.argv[1])
while True:
    reducer([tf.ones([2])])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("servers", "call"),
    [
        (1, "group.all_gather(1)"),
        (0, "other([tf.ones([2])])"),
        pytest.param(0, "group.all_gather(1)", marks=exhaustive),
        pytest.param(0, "group.barrier()", marks=exhaustive),
        pytest.param(1, "group.barrier()", marks=exhaustive),
    ],
)
def test_workers_that_do_not_run_the_same_operations_are_named_and_end(servers, call):
    program = snippet(DIVERGING, call)
    found = finished([program] * (2 + servers), launch_environments(2, servers))
    what = "a call of reducer 1" if call[0] == "o" else call[6:].partition("(")[0]
    why = rf"number 7 is {what} on worker 0 \S+ and a call of reducer 0 on worker 1"
    for output, status in found:
        assert status in FAILED, output
        assert len(re.findall(why, output)) == 1, output


UNEQUAL = """
import sys, terngrad, numpy as np
group = terngrad.join(timeout_secs=20.0)
group.all_gather(eval(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("servers", "array", "why"),
    [
        (
            0,
            "np.ones(3 + group.rank)",
            r"float64\[4\] on worker 1 \S+ and float64\[3\] on worker 0",
        ),
        pytest.param(
            1,
            "np.ones(2, 'fi'[group.rank])",
            r"int32\[2\] on worker 1 \S+ and float32\[2\] on worker 0",
            marks=exhaustive,
        ),
    ],
)
def test_unequal_arrays_to_gather_are_named(servers, array, why):
    program = snippet(UNEQUAL, array)
    found = finished([program] * (2 + servers), launch_environments(2, servers))
    for output, status in found[:2]:
        assert status in FAILED, output
        assert re.search(f"the array to all_gather is {why}", output), output


DIVERGING_IN_ONE_GRAPH = """
import sys, terngrad, tensorflow as tf
group = terngrad.join(timeout_secs=20.0)
weights = [tf.Variable([1.0, 2.0])]
reducers = [terngrad.Reducer(weights, group, gradients="ternary") for _ in range(2)]

@tf.function
def step():
    return [reducer([tf.ones([2])]) for reducer in reducers]

step()
group.rank or eval(sys.argv[1])
while True:
    step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("servers", "call"), [(0, "barrier()"), pytest.param(1, "all_gather(1)", marks=exhaustive)]
)
def test_workers_whose_step_has_several_parts_are_named_where_they_diverge(servers, call):
    program = snippet(DIVERGING_IN_ONE_GRAPH, f"group.{call}")
    for output, status in finished([program] * (2 + servers), launch_environments(2, servers)):
        assert status in FAILED, (status, output[-600:])
        assert "the workers do not run the same operations" in output, output


@pytest.mark.slow
def test_law_6_the_first_float_means_equal_those_of_one_process(tmp_path):
    found = []
    for processes in (2, 1):
        succeed(tmp_path, processes, "--gradients=float32", "--steps=1")
        found.append(written(tmp_path))
    spread, whole = found
    for key in (key for key in whole if key.startswith("mean")):
        atol = 1e-6 * np.abs(whole[key]).max()
        np.testing.assert_allclose(spread[key], whole[key], rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("die", r"worker 1 \(127.0.0.1:\d+\) died: its connection closed"),
        ("operation", r"worker 1 \(127.0.0.1:\d+\) failed: .*3 values"),
        pytest.param("fail", r"worker 1 \(127.0.0.1:\d+\) failed: 'a mistake'", marks=exhaustive),
        pytest.param(
            "leave",
            r"worker 1 \S+ left after 5 operations with the others, of which this one has",
            marks=exhaustive,
        ),
    ],
)
def test_a_worker_that_ends_early_is_named_and_ends_the_others(tmp_path, end, why):
    (chief, status), _ = outcomes(tmp_path, 2, f"--end={end}")
    assert status == LOST_STATUS, chief
    assert re.search(rf"worker 0 \S+ ends: {why}", chief), chief


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "end", "status", "why"),
    [
        (1, "fail", 1, "failed: 'a mistake'"),
        pytest.param(0, "fail", 1, "failed: 'a mistake'", marks=exhaustive),
        pytest.param(0, "exit", 3, "left", marks=exhaustive),
        pytest.param(1, "exit", 3, "left", marks=exhaustive),
    ],
)
def test_a_worker_that_ends_gives_the_launcher_its_status_and_is_named(
    tmp_path, rank, end, status, why
):
    program = [
        "terngrad.testing.programs.own_loop",
        str(tmp_path / "x"),
        f"--end={end}",
        f"--end_of={rank}",
    ]
    with Started([sys.executable, "-m", "terngrad.launch", "-n", "2", "-m", *program]) as run:
        assert run.finish() == status, run.output
    other = 1 - rank
    for line in (
        rf"\[{other}\] worker {other} \S+ ends: worker {rank} \S+ {why}",
        rf"{rank} ended with {status}\.",
    ):
        assert re.search(f"^{line}", run.output, re.M), run.output


def test_importing_the_library_loads_neither_tensorflow_nor_takes_long():
    text = "import sys, terngrad; assert terngrad.__version__; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert {"tensorflow", "keras", "numpy", "google.protobuf"}.isdisjoint(loaded.stdout.split())


@pytest.mark.parametrize("name", ["join", "keras"])
def test_without_tensorflow_a_name_says_what_to_install(name):
    text = f"import sys; sys.modules['tensorflow'] = None; import terngrad; terngrad.{name}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert f"terngrad.{name} needs TensorFlow: pip install '.[cpu]'" in last
