"""ImageNet: archives from the disk or from the user's addresses become records, in several runs."""

import os
import shutil

import pytest

from inception.testing.runs import run_program
from slim.datasets import files, imagenet
from slim.datasets.dataset_factory import get_dataset
from slim.testing import serving, write_imagenet

_PROGRAM = "inception.download_and_preprocess_imagenet"
_SHARDS = ("--train_shards=3", "--validation_shards=2")


@pytest.fixture(name="source")
def _source(tmp_path):
    write_imagenet(tmp_path / "source", {"n01440764": 4, "n01443537": 2}, num_validation=4)
    return tmp_path / "source"


def _check(out, printed):
    assert printed.endswith("Finished writing all 10 images in data set.\n")
    counts = [get_dataset("imagenet", split, out).counts for split in ("train", "validation")]
    assert counts == [(2, 2, 2), (2, 2)]


def test_archives_on_the_disk_are_converted_without_being_unpacked(source, tmp_path, capsys):
    out = tmp_path / "out"
    run_program(_PROGRAM, out, f"--source_dir={source}", *_SHARDS)
    _check(str(out), capsys.readouterr().out)
    assert not [path for path in out.rglob("*") if path.suffix in (".JPEG", ".tar")]


def test_archives_in_the_download_folder_are_found(source, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    source.rename(tmp_path / "out" / "download")
    run_program(_PROGRAM, tmp_path / "out", *_SHARDS)
    _check(str(tmp_path / "out"), capsys.readouterr().out)
    shutil.rmtree(tmp_path / "out" / "download")
    run_program(_PROGRAM, tmp_path / "out", *_SHARDS)  # everything is there
    _check(str(tmp_path / "out"), capsys.readouterr().out)


def test_a_download_is_checked_and_a_conversion_goes_on(source, tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "out")
    train, validation = imagenet.TRAIN_ARCHIVE, imagenet.VALIDATION_ARCHIVE
    digests = {name: files.digest_of(str(source / name), "md5") for name in (train, validation)}
    os.makedirs(f"{out}/download")
    (source / imagenet.VALIDATION_LABELS_FILE).rename(
        f"{out}/download/{imagenet.VALIDATION_LABELS_FILE}"
    )
    with serving(source) as address:
        urls = [f"--train_url={address}/{train}", f"--validation_url={address}/{validation}"]
        with pytest.raises(SystemExit, match="the download is not the expected file"):
            run_program(_PROGRAM, out, *urls, *_SHARDS)
        monkeypatch.setattr(imagenet, "_MD5", digests)
        run_program(_PROGRAM, out, *urls, *_SHARDS)
    _check(out, capsys.readouterr().out)
    os.remove(f"{out}/train-00001-of-00003")
    run_program(_PROGRAM, out, *urls, *_SHARDS)  # without the server
    printed = capsys.readouterr().out
    _check(out, printed)
    assert "keeps its 4 existing record files" in printed


def test_a_web_page_in_the_place_of_boxes_is_not_kept(source, tmp_path):
    (source / "login.html").write_text("<html>Please log in</html>")
    with (
        serving(source) as address,
        pytest.raises(SystemExit, match=r"login\.html: .* not the expected"),
    ):
        run_program(_PROGRAM, tmp_path, f"--train_boxes_url={address}/login.html")
    assert not list((tmp_path / "download").iterdir())


def test_faults_are_one_line(tmp_path):
    for words, message in (
        ([], "--data_dir=: must name a folder for the record files"),
        ([tmp_path], "holds neither ILSVRC2012_img_train.tar nor .* your account at image-net.org"),
        (
            [tmp_path, f"--source_dir={tmp_path}", "--train_url=https://y"],
            f"--source_dir={tmp_path}: leaves nothing to download from addresses",
        ),
        *(
            (
                [tmp_path, f"--{name}=image-net.org/a.tar"],
                f"--{name}=image-net.org/a.tar: must be an address that begins with http://, "
                "https://, ftp:// or file://$",
            )
            for name in ("train_url", "validation_url", "train_boxes_url", "validation_boxes_url")
        ),
    ):
        with pytest.raises(SystemExit, match=f"^download_and_preprocess_imagenet: .*{message}"):
            run_program(_PROGRAM, *words)
