"""Processes of a machine share out its GPUs."""

import pytest

from terngrad.launcher import gpus


@pytest.mark.parametrize(("count", "expected"), [(2, ["0", "1"]), (0, [])])
def test_gpus_are_those_that_are_installed(tmp_path, monkeypatch, count, expected):
    lines = "\n".join(f"echo 'GPU {i}: a card'" for i in range(count))
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.found({}) == expected


_MIG = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)
  MIG 3g.20gb     Device  0: (UUID: MIG-b)
  MIG 1g.5gb      Device  1: (UUID: MIG-c/1/0)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-d)
"""


def test_slices_of_a_gpu_count_in_its_place(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{_MIG}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.found({}) == ["MIG-b", "MIG-c/1/0", "GPU-d"]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [((), []), (("nvidia2", "nvidia5", "nvidiactl", "nvidia-uvm"), ["0", "1"])],
)
def test_without_nvidia_smi_the_devices_are_counted(tmp_path, monkeypatch, devices, expected):
    for name in devices:
        (tmp_path / name).touch()
    monkeypatch.setattr(gpus, "_DEVICES", gpus._DEVICES.replace("/dev", str(tmp_path)))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.found({}) == expected


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("4,MIG-a", ["4", "MIG-a"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),  # CUDA hides the rest, too
        ("0, 2,,1", ["0", "2"]),
    ],
)
def test_the_environment_may_name_the_gpus(named, expected):
    assert gpus.found({"CUDA_VISIBLE_DEVICES": named}) == expected


@pytest.mark.parametrize(
    ("count", "slots", "expected"),
    [(4, 2, ["0,2", "1,3"]), (2, 2, ["0", "1"]), (3, 2, ["0,2", "1"])],
)
def test_each_process_has_gpus_of_its_own(count, slots, expected):
    machine = list(map(str, range(count)))
    assert [gpus.variables(machine, slot, slots, {}) for slot in range(slots)] == [
        {"CUDA_VISIBLE_DEVICES": each} for each in expected
    ]


def test_processes_that_share_a_gpu_take_memory_as_they_need_it():
    own = {"CUDA_VISIBLE_DEVICES": "0"}
    assert gpus.variables(["0"], 1, 2, {}) == own | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    assert gpus.variables(["0"], 1, 2, {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}) == own


def test_servers_use_no_gpu_and_without_gpus_nothing_is_set():
    assert gpus.no_gpu(["0"]) == {"CUDA_VISIBLE_DEVICES": "-1"}
    assert gpus.no_gpu([]) == gpus.variables([], 0, 2, {}) == {}


@pytest.mark.parametrize(
    ("items", "slots", "shares"),
    [("abcd", 2, ["ac", "bd"]), ("abc", 2, ["ac", "b"]), ("ab", 3, ["a", "b", "a"])],
)
def test_shares_cover_all_items_and_none_is_empty(items, slots, shares):
    assert [gpus.share(items, slot, slots) for slot in range(slots)] == shares
