"""A process that ends before it has joined the others sends them the reason: real processes."""

import contextlib
import re

import pytest

from inception.cluster import members
from inception.testing.runs import commands_of, flags_of
from terngrad.testing.addresses import free_ports
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started

pytestmark = pytest.mark.slow

_UNWRITABLE = "--train_dir=/proc/train"
_WHY = "flag --train_dir=/proc/train: is not writable (No such file or directory)"


@contextlib.contextmanager
def started(own, *flags, training=None):
    """Processes of a cluster by their flags; yields what runs."""
    program, common = training or flags_of("/tmp/unused", net="mlp", batch_size=2)
    with contextlib.ExitStack() as stack:
        both = [[*flags, f"--worker_timeout_secs={HANG_SECS}", *each] for each in own]
        commands = commands_of(program, common, both)
        yield [stack.enter_context(Started(command)) for command in commands]


@pytest.mark.parametrize(
    ("servers", "flags"), [(0, []), (2, []), (1, ["--cross_replica_sync=False"])]
)
def test_law_10_a_train_dir_that_the_chief_cannot_write_to_is_reported_to_all(
    tmp_path, servers, flags
):
    own = [member.flags for member in members.members(3, servers, free_ports)]
    own = [[f"--train_dir={tmp_path / str(i)}", *each] for i, each in enumerate(own)]
    own[0].append(_UNWRITABLE)
    with started(own, *flags) as runs:
        assert [run.finish() for run in runs[:3]] == [1] * 3
        assert runs[0].lines[-1] == f"mnist_distributed_train: {_WHY}"
        line = rf"worker 0 \(127.0.0.1:\d+\) failed: {re.escape(_WHY)}"
        for other in runs[1:3]:
            assert re.search(f": {line}$", other.lines[-1]), other.output
        if servers:
            assert runs[3].finish() == 1
            assert re.search(rf"ps 0 .* ends: worker 0 .*failed: {re.escape(_WHY)}", runs[3].output)


def test_law_10_what_slims_program_reports_to_the_others_has_tf_slims_names(tmp_path):
    (tmp_path / "train-mnist.tfrecord").touch()
    flags = [f"--dataset_dir={tmp_path}", "--dataset_name=mnist", f"--train_dir={tmp_path}"]
    own = [member.flags for member in members.members(2, 0, free_ports)]
    own = [[*each, f"--model_name={net}"] for each, net in zip(own, ("mlp", "no"), strict=True)]
    with started(own, training=("slim.train_image_classifier", flags)) as runs:
        assert [run.finish() for run in runs] == [1, 1]
        why = "flag --model_name=no: unknown net"
        assert runs[1].lines[-1].startswith(f"train_image_classifier: {why}")
        assert re.search(rf"worker 1 \(127.0.0.1:\d+\) failed: {why}", runs[0].lines[-1])
