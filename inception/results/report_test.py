"""A run is read from its folder: what its steps sent, and how its checkpoints do."""

import pytest
import tensorflow as tf

from inception.results import report
from inception.results.metrics import Metrics


def _write(folder, logged):
    """Writes the figures of a run of 1,000 parameters by step: bytes sent since the one before."""
    (folder / f"model.ckpt-{max(logged)}.index").touch()
    with tf.summary.create_file_writer(str(folder)).as_default():
        for step, octets in logged.items():
            tf.summary.experimental.set_step(step)
            tf.summary.scalar("losses/total_loss", 1.0)
            tf.summary.scalar("examples_per_sec", 100.0)
            tf.summary.scalar("bytes_sent_per_step", octets)
            tf.summary.scalar("bits_per_parameter", 8 * octets / 1000)


def test_bytes_are_the_mean_over_all_steps_not_over_the_logged_ones(tmp_path):
    _write(tmp_path, {1: 4000.0, 80: 200.0, 100: 100.0})
    evaluate = lambda paths: [Metrics(0.5, 0.9, 10) for _ in paths]
    run = report.read_run(str(tmp_path), batch_size=10, evaluate=evaluate)
    assert run.payload_bytes == (1 * 4000 + 79 * 200 + 20 * 100) / 100
    assert run.bits_per_parameter == pytest.approx(8 * run.payload_bytes / 1000)
    assert (run.parameters, run.ms_per_step) == (1000, 100)


def test_names_of_runs_that_look_like_markup_are_printed_as_they_are(tmp_path, capsys):
    _write(tmp_path, {1: 125, 2: 125})
    run = report.read_run(str(tmp_path), batch_size=8, evaluate=lambda _: [Metrics(0.5, 1.0, 10)])
    report.print_table({"a[/b]": run, "c[v3]": run}, "t[x]")
    printed = capsys.readouterr().out
    assert "t[x]" in printed and " a[/b] " in printed and " c[v3] " in printed
