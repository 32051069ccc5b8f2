"""ImageNet's folders and archives become records by the program's flags."""

import shutil

import pytest

from inception.testing.runs import run_program
from slim.datasets.dataset_factory import get_dataset
from slim.testing import write_imagenet

_PROGRAM = "inception.data.build_imagenet_data"
_LABELS = "imagenet_2012_validation_synset_labels.txt"


@pytest.fixture(name="source")
def _source(tmp_path):
    write_imagenet(tmp_path / "in", {"n01440764": 4, "n01443537": 2}, num_validation=4)
    return tmp_path / "in"


@pytest.mark.parametrize("raw", [False, True])
def test_folders_and_archives_become_equal_records(source, tmp_path, capsys, raw):
    flags = ["--train_shards=2", "--validation_shards=2", f"--raw_pixel={raw}"]
    labels = source / "synsets" if raw else source / _LABELS
    labels.write_bytes((source / _LABELS).read_bytes())
    flags += [f"--validation_labels_file={labels}"]
    flags += ["--resize_dimen=16"] if raw else []
    folders = ("train", "validation"), ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar")
    contents = []
    for number, (train, validation) in enumerate(folders):
        out = tmp_path / str(number)
        places = {"train": source / train, "validation": source / validation, "output": out}
        run_program(_PROGRAM, *flags, *(f"--{k}_directory={v}" for k, v in places.items()))
        printed = capsys.readouterr().out
        assert printed.endswith("Finished writing all 10 images in data set.\n")
        contents.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert contents[0] == contents[1]
    dataset = get_dataset("imagenet", "train", str(tmp_path / "0"))
    assert dataset.num_classes == 1001 and dataset.counts == (3, 3)


@pytest.mark.parametrize(
    ("validation", "why"),
    [
        ([], "needs --validation_directory"),
        (["--validation_directory={0}/other"], "must not be set: {0}/other has a folder for each"),
    ],
)
def test_labels_of_pictures_whose_classes_are_known_are_refused(source, tmp_path, validation, why):
    labels = source / _LABELS
    shutil.copytree(source / "train", source / "other")
    with pytest.raises(SystemExit) as ended:
        run_program(
            _PROGRAM,
            f"--train_directory={source / 'train'}",
            f"--validation_labels_file={labels}",
            f"--output_directory={tmp_path / 'out'}",
            *(flag.format(source) for flag in validation),
        )
    flag = f"build_imagenet_data: flag --validation_labels_file={labels}"
    assert ended.value.code.startswith(f"{flag}: {why.format(source)}")
    assert not (tmp_path / "out").exists()


def test_a_file_that_does_not_exist_is_named_with_its_flag(source):
    given = ["--output_directory=out", f"--train_directory={source / 'train'}"]
    for name in ("labels_file", "imagenet_metadata_file", "bounding_box_file"):
        with pytest.raises(SystemExit, match=f"flag --{name}=/nowhere: cannot be read .No such"):
            run_program(_PROGRAM, *given, f"--{name}=/nowhere")


def test_a_number_of_record_files_of_no_pictures_is_named(source, tmp_path, capsys):
    shards = ["--train_shards=9", "--validation_shards=2"]
    folder = f"--validation_directory={source / 'train'}"
    run_program(_PROGRAM, *shards, folder, f"--output_directory={tmp_path / 'out'}")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("--")]
    assert lines == ["--train_shards: has no effect with an empty train split."]


def test_the_flag_that_says_the_classes_of_flat_pictures_is_named(source, tmp_path):
    hint = "classes of .* are unknown; give them with --validation_labels_file$"
    with pytest.raises(SystemExit, match=hint):
        run_program(
            _PROGRAM,
            f"--validation_directory={source / 'validation'}",
            f"--output_directory={tmp_path / 'out'}",
        )
