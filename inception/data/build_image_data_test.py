"""One's own pictures become records by the program's flags, and faults are one line."""

import io
import shutil
import sys

import pytest

from inception.testing.runs import run_program
from slim.datasets.dataset_factory import get_dataset
from slim.testing import write_pictures

_PROGRAM = "inception.data.build_image_data"


@pytest.fixture(name="pictures")
def _pictures(tmp_path):
    write_pictures(tmp_path / "pictures", {"cats": 20, "dogs": 20}, ".png")
    return tmp_path / "pictures"


def test_pictures_become_records_with_a_tenth_set_aside(pictures, tmp_path, capsys):
    run_program(_PROGRAM, f"--train_directory={pictures}", f"--output_directory={tmp_path / 'out'}")
    assert capsys.readouterr().out == "Finished writing all 40 images in data set.\n"
    counts = [
        get_dataset("images", s, str(tmp_path / "out")).counts for s in ("train", "validation")
    ]
    assert counts == [(18, 18), (2, 2)]
    assert (tmp_path / "out/labels.txt").read_text() == "0:background\n1:cats\n2:dogs\n"


def test_few_pictures_fill_a_file_each_where_no_number_is_asked_for(tmp_path):
    write_pictures(tmp_path / "few", {"cats": 2, "dogs": 1}, ".png")
    run_program(
        _PROGRAM, f"--train_directory={tmp_path / 'few'}", f"--output_directory={tmp_path / 'out'}"
    )
    counts = lambda split: get_dataset("images", split, str(tmp_path / "out")).counts
    assert (counts("train"), counts("validation")) == ((1, 1), (1,))


def test_a_number_of_record_files_of_no_pictures_is_named(pictures, tmp_path, capsys):
    flags = ["--validation_share=0", "--validation_shards=7", f"--output_directory={tmp_path}/out"]
    run_program(_PROGRAM, f"--train_directory={pictures}", *flags)
    line = "--validation_shards: has no effect with an empty validation split.\n"
    assert line in capsys.readouterr().out


def test_flags_choose_classes_shards_and_validation(pictures, tmp_path, capsys):
    (tmp_path / "labels").write_text("dogs\n")
    others = shutil.copytree(pictures, tmp_path / "others")
    run_program(
        _PROGRAM,
        *("--train_directory", pictures, "--validation_directory", others),
        *("--output_directory", tmp_path / "out", "--labels_file", tmp_path / "labels"),
        *("--train_shards", 3, "--validation_shards", 1, "--num_threads", 2),
        *("--validation_share", 0.2),
    )
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "--validation_share: has no effect with --validation_directory."
    assert printed[-1] == "Finished writing all 40 images in data set."
    dataset = get_dataset("images", "train", str(tmp_path / "out"))
    assert dataset.class_names == ("background", "dogs") and dataset.counts == (7, 7, 6)
    assert get_dataset("images", "validation", str(tmp_path / "out")).counts == (20,)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output_directory=out"], "--train_directory=: must name a folder with a folder for"),
        (["--train_directory=in"], "--output_directory=: must name a folder for the record files"),
        (["--train_shards=0"], "--train_shards=0: must be an integer >= 1"),
        (["--resize_dimen=9"], "--resize_dimen=9: needs --raw_pixel=True"),
    ],
)
def test_a_fault_of_the_flags_is_one_line(flags, message):
    with pytest.raises(SystemExit, match=f"^build_image_data: .*{message}[^\n]*$"):
        run_program(_PROGRAM, *flags)


def test_a_file_that_does_not_exist_is_named_with_its_flag(pictures):
    given = ["--output_directory=out", f"--train_directory={pictures}"]
    for name in ("train_directory", "validation_directory", "labels_file"):
        why = f"flag --{name}=/nowhere: cannot be read \\(No such file or directory\\)$"
        with pytest.raises(SystemExit, match=f"^build_image_data: {why}"):
            run_program(_PROGRAM, *given, f"--{name}=/nowhere")


def test_pictures_do_not_serve_both_splits_nor_lie_around_their_records(pictures, tmp_path):
    (tmp_path / "link").symlink_to(pictures)
    train, out = f"--train_directory={pictures}", f"--output_directory={tmp_path}/out"
    with pytest.raises(SystemExit, match=r"--validation_directory=.*/link: is --train_directory"):
        run_program(_PROGRAM, train, f"--validation_directory={tmp_path}/link", out)
    with pytest.raises(SystemExit, match=r"--output_directory=.*/records: must not lie in --t"):
        run_program(_PROGRAM, train, f"--output_directory={tmp_path}/link/records")
    (tmp_path / "labels").write_text("dogs\n")
    allowed = {"records": f"--labels_file={tmp_path}/labels", ".records": "--validation_directory="}
    for name, more in allowed.items():
        run_program(_PROGRAM, train, f"--output_directory={pictures / name}", more)
        shutil.rmtree(pictures / name)
    assert sorted(path.name for path in pictures.iterdir()) == ["cats", "dogs"]


def test_a_left_out_name_that_stdout_cannot_encode_is_escaped(pictures, tmp_path, monkeypatch):
    (pictures / "dogs" / "犬.doc").write_bytes(b"")
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    run_program(_PROGRAM, f"--train_directory={pictures}", f"--output_directory={tmp_path / 'out'}")
    output.flush()
    assert rb"leaves out dogs/\u72ac.doc; " in output.buffer.getvalue()


def test_files_that_are_left_out_and_older_validation_records_are_named(pictures, tmp_path, capsys):
    (pictures / "stray.jpg").write_bytes(b"")
    (pictures / "dogs" / "notes.doc").write_bytes(b"")
    flags = (f"--train_directory={pictures}", f"--output_directory={tmp_path / 'out'}")
    run_program(_PROGRAM, *flags)
    assert f"{pictures}: leaves out stray.jpg, dogs/notes.doc; " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="may hold pictures that now serve training"):
        run_program(_PROGRAM, *flags, "--validation_share=0", "--overwrite")
    write_pictures(tmp_path / "one", {"cats": 1})
    with pytest.raises(SystemExit, match=r"flag --validation_share=0.1: .* may hold pictures"):
        run_program(_PROGRAM, f"--train_directory={tmp_path}/one", *flags[1:], "--overwrite")
