"""The soak test disturbs a training and finds nothing lost."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import soak

_MAKE_CERTS = Path(__file__).parents[1] / "scripts" / "make_certs.sh"


def _certs(folder: Path) -> str:
    subprocess.run(["bash", _MAKE_CERTS, folder, "127.0.0.1"], check=True, capture_output=True)
    return str(folder)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_faults_of_all_kinds_change_no_bit_and_all_is_reported(run, digits, tmp_path):
    picture = tmp_path / "figure.png"
    can_cut = os.geteuid() == 0 and shutil.which("ss")
    kinds = ["kill", "freeze", "flood", *(["cut"] if can_cut else [])]
    found = run(
        *("soak", f"--data_dir={digits}", f"--output_dir={tmp_path / 'runs'}", f"--png={picture}"),
        *(
            f"--certs_dir={_certs(tmp_path / 'certs')}",
            f"--faults={','.join(kinds)}",
            "--workers=2",
        ),
        *("--minutes=0.125", "--every_secs=2", "--batch_size=4", "--pause_ms=50", "--seed=8"),
    )
    figures = found["figures"]
    assert {kind for kind, count in figures["faults"].items() if count} == set(kinds)
    assert len(found["faults"]) >= sum(figures["faults"].values())
    assert figures["views"] >= 2
    assert figures["largest number of finished steps that a view went back"] <= 0
    assert figures["finished steps that a worker made again"] == 0
    assert figures["steps that the worker that was never killed left out"] == 0
    assert figures["steps"] > 0
    assert figures["variables that were compared"] > 8
    assert figures["variables that differ from the undisturbed run"] == 0
    assert picture.stat().st_size > 1000


def test_the_seed_alone_determines_the_faults_and_all_can_come_back():
    options = [soak._Options(minutes=200.0, every_secs=20.0, seed=seed) for seed in (1, 1, 2)]
    first, again, other = map(soak._plan, options)
    assert first == again != other
    assert len(first) > 300
    assert {fault.kind for fault in first} == {"kill", "freeze", "cut", "flood"}
    killed = {fault.victim for fault in first if fault.kind == "kill"}
    assert killed == {"0", "1", "ps 0", "ps 1"}
    assert max(fault.secs for fault in first if fault.kind == "freeze") < 60


def test_steps_that_are_lost_or_made_again_are_counted():
    step = lambda worker, number: f"[{worker}] Worker {worker}: 12:00: step {number}, loss = 1.0"
    view = lambda number: f"[ps 0] Workers 0 and 1 train from step {number} on."
    gives = lambda number: f"{view(number)[:-1]}; worker 0 gives its state to worker 1."
    late = f"[ps 0] Left out 1 more lines like this one: {view(0)}"
    calm = [view(0), step(0, 1), step(1, 1), view(1), step(1, 2), late, step(0, 2)]
    lost = [*calm, view(0), step(0, 1), step(1, 1), step(1, 4)]
    away = [*calm, step(0, 3), gives(3), step(0, 4), step(1, 4)]
    left_out = [*away[:-1], step(1, 5)]
    found = [
        list(soak._steps_lost(soak._Options(workers=2), each).values())
        for each in (calm, lost, away, left_out)
    ]
    assert found == [[2, 0, 0, 0], [3, 2, 2, 1], [3, 0, 0, 0], [3, 0, 0, 1]]


def test_an_unknown_kind_of_fault_is_refused():
    with pytest.raises(
        ValueError, match="--faults=kill,fire: must be one or more of kill, freeze, cut, flood"
    ):
        soak._Options(faults=("kill", "fire"))


@pytest.mark.parametrize(
    ("megabytes", "means"),
    [
        ([1, 1, 2, 2, 3, 3, 4, 4], [1.0, 2.0, 3.0, 4.0]),
        ([1, 3, 5, 7, 9], [2.0, 5.0, 7.0, 9.0]),
        ([5], [5.0]),
        ([], []),
    ],
)
def test_each_sample_of_memory_counts_in_one_quarter(megabytes, means):
    samples = [(float(i), "1", value) for i, value in enumerate(megabytes)]
    others = [(float(i), "0", 1000.0) for i in range(9)]
    watch = soak._Watch(memory=samples + others)
    assert soak._quarters(watch, "1") == means
