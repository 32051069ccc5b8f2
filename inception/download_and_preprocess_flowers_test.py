"""Flowers: downloaded, checked and converted, or taken from the disk."""

import tarfile

import pytest

from inception.testing.runs import run_program
from slim.datasets import files, flowers
from slim.datasets.dataset_factory import get_dataset
from slim.testing import serving, write_pictures

_PROGRAM = "inception.download_and_preprocess_flowers"


@pytest.fixture(name="source")
def _source(tmp_path):
    folder = tmp_path / "source"
    write_pictures(folder / "flower_photos", {"daisy": 10, "roses": 10})
    with tarfile.open(folder / "flower_photos.tgz", "w:gz") as archive:
        archive.add(folder / "flower_photos", "flower_photos")
    return folder


def _check(out, printed):
    assert printed.endswith("Finished writing all 20 images in data set.\n")
    train, validation = (get_dataset("flowers", s, out) for s in ("train", "validation"))
    assert train.class_names == ("background", "daisy", "roses")
    assert (train.counts, validation.counts) == ((8, 8), (2, 2))


def test_the_archive_is_downloaded_once(source, tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "out")
    archive = source / "flower_photos.tgz"
    monkeypatch.setattr(flowers, "_SHA256", files.digest_of(str(archive)))
    with serving(source) as address:
        monkeypatch.setattr(flowers, "_URL", f"{address}/{archive.name}")
        run_program(_PROGRAM, out)
    _check(out, capsys.readouterr().out)
    run_program(_PROGRAM, out)  # without the server
    _check(out, capsys.readouterr().out)


@pytest.mark.parametrize("place", ["", "flower_photos"])
def test_files_on_the_disk_are_taken(source, tmp_path, capsys, place):
    run_program(_PROGRAM, tmp_path / "out", f"--source_dir={source / place}")
    _check(str(tmp_path / "out"), capsys.readouterr().out)
    assert not (tmp_path / "out" / "download").exists()


def test_tf_slims_program_writes_the_same_files(source, tmp_path, capsys):
    run_program(_PROGRAM, tmp_path / "one", f"--source_dir={source}")
    run_program(
        "slim.download_and_convert_data",
        *("--dataset_name=flowers", f"--dataset_dir={tmp_path / 'two'}", f"--source_dir={source}"),
    )
    _check(str(tmp_path / "two"), capsys.readouterr().out)
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("one", "two"))
    assert one == two


def test_faults_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(flowers, "_URL", "http://127.0.0.1:9/flower_photos.tgz")
    for words, message in (
        ([], "--data_dir=: must name a folder for the record files"),
        ([tmp_path / "out"], "cannot download .*--source_dir"),
        ([tmp_path / "out", f"--source_dir={tmp_path}"], "holds no pictures in a folder for each"),
        ([tmp_path / "out", "--source_dir=nowhere"], "--source_dir=nowhere: cannot be read"),
    ):
        with pytest.raises(SystemExit, match=f"^download_and_preprocess_flowers: .*{message}"):
            run_program(_PROGRAM, *words)
