"""The benchmark trains the missing runs and compares them."""

import numpy as np
import pytest

from slim.datasets import cifar10
from terngrad.training import checkpoints

RUNS = {"scratch": "from scratch", "tuned": "fine-tuned"}


@pytest.mark.slow
def test_nets_are_trained_and_evaluated_on_the_new_classes(run, tmp_path, monkeypatch, capfd):
    images = np.random.default_rng(1).integers(0, 256, [100, 32, 32, 3], np.uint8)
    splits = dict.fromkeys(("train", "test"), (images, np.arange(100) % 10))
    monkeypatch.setattr(cifar10, "load", lambda folder: splits)
    output = tmp_path / "runs"
    arguments = (f"--output_dir={output}", f"--png={tmp_path}/curves.png", "--net=cifarnet")
    arguments += ("--images=8", "--old_images=10", "--test_images=6", "--steps=10")

    figures = run("fine_tuning", *arguments, "--old_steps=10")
    assert 0 <= figures["first net"] <= 1
    curves = figures["precision @ 1 by step"]
    assert set(curves) == {*RUNS.values(), "fine-tuned, ternary gradients"}
    for name, title in RUNS.items():
        steps = [step for step, _ in curves[title]]
        assert steps == [*map(checkpoints.step_of, checkpoints.all_checkpoints(output / name))]
        assert steps[-1] == 10
    told = capfd.readouterr().out
    assert told.count("2 start afresh: logits/") == 2  # the runs that are not from scratch
    assert told.count("Finished writing all") == 2
    assert (tmp_path / "curves.png").stat().st_size > 0
    labels = (output / "new" / "records" / "labels.txt").read_text()
    assert sorted(line.split(":")[1] for line in labels.splitlines()[1:]) == sorted(
        cifar10.INFO.class_names[5:]
    )

    with pytest.raises(SystemExit, match=r"other options than --old_steps=20 \(was 10\)"):
        run("fine_tuning", *arguments, "--old_steps=20")
