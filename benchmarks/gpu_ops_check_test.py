"""The program that checks TensorFlow's operations on a GPU, with a CPU in its place."""

import json

import pytest
import tensorflow as tf

from benchmarks import gpu_ops_check
from benchmarks.gpu import timings
from benchmarks.gpu_ops_check import Target
from terngrad.ops.native import NativeKernels
from terngrad.ops.reference import ReferenceKernels

_CPU = "/device:CPU:0"
_SHAPES = ((33,), (129, 7), (20, 8192))


@pytest.fixture(autouse=True)
def fewer_values(monkeypatch):
    """Tests take seconds."""
    monkeypatch.setattr(timings, "NETS", {"AlexNet": _SHAPES})
    monkeypatch.setattr(gpu_ops_check, "NETS", {"AlexNet": _SHAPES})
    monkeypatch.setattr(gpu_ops_check, "SHAPES", _SHAPES)


class _Wrong(NativeKernels):
    """Loses the largest magnitudes."""

    def stats(self, gradients, parts=()):
        found = super().stats(gradients, parts)
        return found._replace(max_abs=tf.minimum(found.max_abs, 3.0))


def _targets(checked):
    return [Target(each, _CPU) for each in (NativeKernels("portable"), checked, ReferenceKernels())]


@pytest.mark.slow
def test_bits_agree_and_times_are_written(tmp_path, capsys):
    path = tmp_path / "figures.json"
    gpu_ops_check.main(["--seed=3", "--rounds=2", f"--json={path}"], _targets(NativeKernels()))
    printed, figures = capsys.readouterr().out, json.loads(path.read_text())
    assert "- seed: 3\n" in printed and "WRONG" not in printed
    conditions = figures["environment"]
    assert conditions["seed"] == 3 and conditions["TensorFlow"] == tf.__version__
    assert {"date", "commit", "GPU", "driver", "NVRTC"} <= conditions.keys()
    assert "- updates as on the CPU: 5 cases, " in printed
    assert all(finding["values"] for finding in figures["laws"])
    native, reference = figures["milliseconds"].values()
    assert native.keys() == reference.keys() | {"update, momentum"}


@pytest.mark.slow
def test_other_bits_are_reported_and_fail(capsys):
    with pytest.raises(SystemExit, match=r"^gpu_ops_check: \d+ values are not what they must be$"):
        gpu_ops_check.main(["--seed=3", "--rounds=0"], _targets(_Wrong()))
    assert "- WRONG: statistics, codes, sums, means as on the CPU: " in capsys.readouterr().out


def test_without_a_gpu_it_ends_with_a_line():
    with pytest.raises(SystemExit, match=r"^gpu_ops_check: TensorFlow sees no GPU$"):
        gpu_ops_check.main([])
