"""The benchmark of whole trainings on hosts on a slow network."""

import pytest

STEPS = 10


@pytest.mark.slow
def test_trainings_are_timed_to_the_first_checkpoint_that_is_good_enough(
    has_networks, run, digits, tmp_path
):
    png = tmp_path / "time.png"
    figures = run(
        *("time_to_accuracy", f"--data_dir={digits}", f"--output_dir={tmp_path / 'runs'}"),
        *("--hosts=2", "--rate=1gbit", "--batch_size=8", "--target=0.0"),
        *(f"--max_steps={STEPS}", "--save_iter=5", f"--png={png}"),
    )
    assert set(figures["runs"]) == {"float32", "ternary"}
    for run_of_kind in figures["runs"].values():
        assert run_of_kind["steps"] == [5, 10]
        first, last = run_of_kind["secs"]
        assert 0 < first < last
        assert run_of_kind["steps_to_target"] == 5
        assert run_of_kind["secs_to_target"] == first
    assert png.stat().st_size > 0


def test_law_10_folders_that_exist_are_refused(run, tmp_path):
    (tmp_path / "ternary").mkdir()
    with pytest.raises(SystemExit) as end:
        run("time_to_accuracy", f"--output_dir={tmp_path}")
    why = f"flag --output_dir={tmp_path}: {tmp_path / 'ternary'} already exists"
    assert str(end.value) == f"time_to_accuracy: {why}"
