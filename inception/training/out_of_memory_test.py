"""Errors of processes that have no memory left."""

import re
import resource

import pytest
import tensorflow as tf

from inception.testing.cluster import ProcessCluster
from inception.testing.runs import commands_of, paced_flags_of
from inception.training.out_of_memory import naming_out_of_memory
from terngrad.testing.processes import Started
from terngrad.training import checkpoints

HELPS = "needs a smaller --batch_size or --net, or more memory (see ulimit -v)"
GRAPH = (
    "Graph execution error:\n\nDetected at node PyFunc_4 defined at (most recent call last):\n"
    "<stack traces unavailable>\n%s\n\t [[{{node PyFunc_4}}]]\nHint: If you want"
)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError(), ""),
        (MemoryError("Unable to allocate 4 GiB"), " (Unable to allocate 4 GiB)"),
        (tf.errors.ResourceExhaustedError(None, None, GRAPH % "MemoryError: "), ""),
        (
            tf.errors.ResourceExhaustedError(None, None, GRAPH % "OOM when allocating tensor"),
            " (OOM when allocating tensor)",
        ),
    ],
)
def test_law_10_one_line_says_that_there_is_no_memory_and_what_helps(error, what):
    with pytest.raises(MemoryError) as raised, naming_out_of_memory():
        raise error
    assert str(raised.value) == f"out of memory{what}: {HELPS}"


@pytest.mark.parametrize(
    "what",
    [
        "OOM when allocating tensor with shape[9] and type float on "
        "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        "terngrad_stats: CUDA_ERROR_OUT_OF_MEMORY, out of memory",
        "terngrad_stats: CUDA_ERROR_OUT_OF_MEMORY",
    ],
)
def test_law_10_too_little_memory_of_a_gpu_is_not_the_processs(what):
    error = tf.errors.ResourceExhaustedError(None, None, GRAPH % what)
    helps = "needs a smaller --batch_size or --net, or more memory on the GPU (see nvidia-smi)"
    with pytest.raises(MemoryError) as raised, naming_out_of_memory():
        raise error
    assert str(raised.value) == f"out of memory ({what}): {helps}"


def test_errors_about_something_else_stay_as_they_are():
    full = tf.errors.ResourceExhaustedError(None, None, "No space left on device")
    with pytest.raises(tf.errors.ResourceExhaustedError), naming_out_of_memory():
        raise full


def forbid_more_memory(pid):
    """Lets a process have no more memory from the kernel."""
    with open(f"/proc/{pid}/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (size // 2, resource.RLIM_INFINITY))


@pytest.mark.slow
def test_a_worker_without_memory_ends_all_by_name_and_the_chief_saves(tmp_path):
    # A worker keeps what it frees, so that its steps need no more memory. This one does not.
    wasteful = ["env", "MALLOC_MMAP_MAX_=65536", "MALLOC_MMAP_THRESHOLD_=65536"]
    program = paced_flags_of(tmp_path)
    with ProcessCluster(2, 1, *program, absent=["1"]) as cluster:
        (command,) = commands_of(*program, [cluster.members["1"].flags])
        cluster.runs["1"] = Started([*wasteful, *command])
        cluster.wait_for("1", r"Worker 1: .* step 20,")
        forbid_more_memory(cluster.runs["1"].process.pid)
        line = rf"out of memory.*: {re.escape(HELPS)}"
        cluster.wait_for("1", rf"^paced_train: {line}$")
        for other in ("0", "ps 0"):
            cluster.wait_for(other, rf"ends: worker 1 \(.*\) failed: {line}")
        assert [cluster.status(label) for label in ("0", "1", "ps 0")] == [1] * 3
        assert "Traceback" not in cluster.lines()
    assert checkpoints.latest_checkpoint(str(tmp_path))
