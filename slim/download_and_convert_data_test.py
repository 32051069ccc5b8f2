"""The program, as users start it, writes the shards that its flags ask for."""

import sys

import pytest

from slim.datasets.dataset_factory import get_dataset
from slim.testing import write_mnist
from terngrad.testing import forked


def _run(*arguments):
    return forked.run([sys.executable, "-m", "slim.download_and_convert_data", *arguments])


@pytest.mark.slow
def test_converts_into_shards(tmp_path):
    write_mnist(tmp_path, num_images=7, suffix=".gz")
    flags = ["--dataset_name", "mnist", "--shard", "True", "--num_shards", "3"]
    run = _run(*flags, "--dataset_dir", tmp_path / "out", "--source_dir", tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "Finished writing all 14 images in data set.\n"
    assert get_dataset("mnist", "train", str(tmp_path / "out")).counts == (3, 2, 2)
    flags[-1] = "8"
    run = _run(*flags, "--dataset_dir", tmp_path / "more", "--source_dir", tmp_path)
    why = "7 train images do not fill 8 shards; allowed are at most 7"
    missing = _run("--dataset_dir", tmp_path, "--source_dir=nowhere")
    assert "flag --source_dir=nowhere: cannot be read (No such file" in missing.stderr
    assert f"flag --num_shards=8: {why}\n" in run.stderr
