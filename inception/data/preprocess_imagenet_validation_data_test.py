"""Flat validation pictures are sorted into the folders of their synsets."""

import pytest

from inception.testing.runs import run_program
from slim.testing import write_imagenet

_PROGRAM = "inception.data.preprocess_imagenet_validation_data"


def test_each_picture_moves_into_the_folder_of_its_synset(tmp_path, capsys):
    write_imagenet(tmp_path, {"n01440764": 1, "n01443537": 1}, num_validation=3)
    folder, labels = tmp_path / "validation", "imagenet_2012_validation_synset_labels.txt"
    for moved in (3, 0):
        run_program(_PROGRAM, folder, tmp_path / labels)
        assert capsys.readouterr().out.startswith(f"Moved {moved} of 3 pictures")
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.JPEG"))
    assert found == [
        "n01440764/ILSVRC2012_val_00000001.JPEG",
        "n01440764/ILSVRC2012_val_00000003.JPEG",
        "n01443537/ILSVRC2012_val_00000002.JPEG",
    ]


def test_missing_arguments_and_labels_are_named(tmp_path):
    with pytest.raises(SystemExit, match="--labels_file=: must be given"):
        run_program(_PROGRAM, tmp_path)
    with pytest.raises(SystemExit, match=r"--labels_file=nowhere: cannot be read .No such file"):
        run_program(_PROGRAM, tmp_path, "nowhere")
    (tmp_path / "labels").write_text("n01440764\n")
    (tmp_path / "pictures").mkdir()
    with pytest.raises(SystemExit, match="1 lines for 0 pictures"):
        run_program(_PROGRAM, tmp_path / "pictures", tmp_path / "labels")
