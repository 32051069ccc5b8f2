"""The benchmark of whole trainings on hosts on a slow network."""

import pytest

STEPS = 10


@pytest.mark.slow
def test_a_training_is_timed_to_the_first_checkpoint_that_is_good_enough(
    has_networks, run, digits, tmp_path
):
    png = tmp_path / "time.png"
    figures = run(
        *("time_to_accuracy", f"--data_dir={digits}", f"--output_dir={tmp_path / 'runs'}"),
        *("--hosts=2", "--rate=1gbit", "--batch_size=8", "--target=0.0"),
        *(f"--max_steps={STEPS}", "--save_iter=5", f"--png={png}", "--gradients=ternary"),
    )
    (found,) = figures["runs"].values()
    assert found["steps"] == [5, 10]
    first, last = found["secs"]
    assert 0 < first < last
    assert found["steps_to_target"] == 5
    assert found["secs_to_target"] == first
    assert png.stat().st_size > 0


def test_law_10_folders_that_exist_are_refused(run, tmp_path):
    (tmp_path / "ternary").mkdir()
    with pytest.raises(SystemExit) as end:
        run("time_to_accuracy", f"--output_dir={tmp_path}")
    why = f"flag --output_dir={tmp_path}: {tmp_path / 'ternary'} already exists"
    assert str(end.value) == f"time_to_accuracy: {why}"
