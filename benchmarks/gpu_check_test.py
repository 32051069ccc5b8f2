"""The program that checks a GPU, with a GPU that is the host."""

import errno
import json
import os
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest

from benchmarks import gpu_check
from benchmarks.gpu import backends, laws, options, timings
from terngrad.gpu import device
from terngrad.ops.library import UnavailableError
from terngrad.testing import gpu


class HostBackend:
    """HostArrays, and the host's clock."""

    name = "host arrays"
    dtypes = ("float32", "float16", "bfloat16")

    def describe(self):
        return "the host"

    def put(self, values, dtype=""):
        return gpu.HostArray(np.array(values, order="C"), dtype or None)

    def get(self, array):
        return array.values.copy()

    def address(self, array):
        return array.values.ctypes.data

    def copy(self, target, source):
        np.copyto(target.values, source.values)

    def host_copies(self, array):
        return {"to the host": array.values.copy}

    def stream(self):
        return gpu.STREAM

    def record(self):
        return time.perf_counter()

    def seconds(self, start, end):
        return end - start

    def encoder_alternatives(self, values):
        return {"a rival": lambda: np.sign(values.values)}


class Wrong(HostBackend):
    """Returns a sum with a wrong bit."""

    def get(self, array):
        found = super().get(array)
        if found.dtype == np.uint32 and found.size > 1000:
            found.reshape(-1)[77] ^= 4
        return found


@pytest.fixture(autouse=True)
def host_gpu(tmp_path, monkeypatch):
    """A driver in use, and fewer values."""
    monkeypatch.setattr(timings, "NETS", {"AlexNet": ((300, 7), (40,)), "ResNet-50": ((99,),)})
    monkeypatch.setattr(timings, "_BUSY_BYTES", 4096)
    monkeypatch.setattr(laws, "SHAPES", ((), (0,), (33,), (129, 7), (70, 64), (20, 8192)))
    with gpu.FakeDriver(tmp_path).in_use():
        yield


@pytest.mark.slow
def test_laws_hold_and_figures_are_written(tmp_path, capsys):
    path = tmp_path / "figures.json"
    gpu_check.main(["--seed=7", "--rounds=2", f"--json={path}"], HostBackend())
    printed, figures = capsys.readouterr().out, json.loads(path.read_text())
    assert "- seed: 7\n" in printed and "- GPU: the host\n" in printed
    assert "| AlexNet   | encode, 255-level" in printed
    assert "goal missed: milliseconds to encode" in printed or "goal met: milli" in printed
    assert figures["environment"]["seed"] == 7
    assert sum(finding["wrong"] for finding in figures["laws"]) == 0
    assert {finding["law"].partition(":")[0] for finding in figures["laws"]} == {
        "statistics as on the CPU",
        "codes, sums, means as on the CPU",
        "codes depend on values, scale and key alone",
        "sums are those of the integers",
        "the mean of many codes is the value",
        "gradient + memory",
        "the memory keeps the rounding errors, as on the CPU",
        "updates as on the CPU",
    }
    assert all(finding["values"] for finding in figures["laws"])
    tasks = [timing["task"] for timing in figures["timings"] if timing["net"] == "ResNet-50"]
    assert len(set(tasks)) == len(tasks) > 25 and "a rival" in tasks
    assert [goal["limit"] for goal in figures["goals"]] == [2.0, 1.2, 0.25]


@pytest.mark.parametrize(
    ("name", "why"),
    [("none/figures.json", "there is no folder .*/none"), ("", "is a folder, must be a file")],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path, name, why):
    path = tmp_path / name
    with (
        mock.patch.object(backends, "find", side_effect=AssertionError),
        pytest.raises(SystemExit, match=f"^gpu_check: --json: {path}: {why}$"),
    ):
        gpu_check.main([f"--json={path}"])


def test_an_interrupted_or_failed_write_leaves_the_earlier_figures(tmp_path):
    path = tmp_path / "figures.json"
    write = lambda content: options.write_figures("gpu_check", str(path), content)
    write({"a": 1})
    with pytest.raises(TypeError):
        write({"a": object()})
    with (
        mock.patch.object(os, "replace", side_effect=OSError(errno.ENOSPC, "disk full")),
        pytest.raises(SystemExit, match=f"^gpu_check: --json: {path}: disk full$"),
    ):
        write({"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.glob("*.partial")) == []


def test_a_link_keeps_its_place_and_so_does_a_device(tmp_path):
    target, link = tmp_path / "figures.json", tmp_path / "link.json"
    link.symlink_to(target)
    options.write_figures("gpu_check", str(link), {"a": 1})
    assert link.is_symlink() and json.loads(target.read_text()) == {"a": 1}
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDWR)) as reader:
        options.write_figures("gpu_check", str(pipe), {"a": 1})
        assert pipe.is_fifo() and reader.readline() == "{\n"


def test_without_a_file_no_folder_is_checked(monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert options.parser("gpu_check", "").parse_args([]).json == ""


@pytest.mark.slow
def test_wrong_bits_are_reported_and_fail(capsys):
    with pytest.raises(SystemExit, match=r"^gpu_check: \d+ values are not what they must be$"):
        gpu_check.main(["--rounds=0"], Wrong())
    printed = capsys.readouterr().out
    assert "- WRONG: sums are those of the integers: " in printed
    assert "- statistics as on the CPU: 18 cases" in printed


def test_equal_bits_are_not_wrong_nor_are_other_nans():
    ones = np.float32([1, np.nan, -0.0])
    other_nan = np.uint32([0x3F800000, 0x7FFFFFFF, 0x80000000]).view(np.float32)
    assert laws.wrong_in(ones, other_nan) == 0
    assert laws.wrong_in(ones, np.float32([1, 2, 0.0])) == 2
    assert laws.wrong_in(ones, ones[:2]) == 3


def test_the_nets_have_their_sizes(monkeypatch):
    monkeypatch.undo()
    sizes = {
        net: sum(int(np.prod(shape)) for shape in shapes) for net, shapes in timings.NETS.items()
    }
    assert sizes == {"AlexNet": 61_100_840, "ResNet-50": 25_557_032}


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        (
            mock.patch.object(backends, "find", side_effect=backends.NoGpuError("no GPU")),
            "gpu_check: no GPU",
        ),
        (
            mock.patch.object(device, "device", side_effect=UnavailableError("no driver")),
            "gpu_check: no driver",
        ),
    ],
)
def test_without_a_gpu_it_ends_with_a_line(patch, text):
    backend = None if "GPU" in text else HostBackend()
    with patch, pytest.raises(SystemExit, match=f"^{text}$"):
        gpu_check.main([], backend)


@pytest.mark.slow
def test_on_a_machine_without_a_gpu_the_program_prints_one_line():
    command = [sys.executable, "-m", "benchmarks.gpu_check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("gpu_check: ") and done.stderr.count("\n") == 1
    assert done.stdout == ""
