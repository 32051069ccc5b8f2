"""Records that Spark's executors write are those that one machine writes."""

import functools
import shutil

import pytest

from inception.on_spark import conversion
from inception.testing.runs import run_program
from slim.conversion import convert as convert_module
from slim.conversion.options import JPEG, Options
from slim.conversion.sources import PictureSource
from slim.datasets import images
from slim.testing import with_extraneous_bytes, write_pictures
from terngrad.testing import spark as sparks

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.fixture
def pictures(tmp_path):
    """A folder with two classes of small pictures."""
    write_pictures(tmp_path / "pictures", {"cats": 7, "dogs": 7})
    return tmp_path / "pictures"


def convert(pictures, folder, *flags):
    run_program(
        "inception.data.build_image_data",
        f"--train_directory={pictures}",
        f"--output_directory={folder}",
        "--train_shards=3",
        *flags,
    )
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_the_files_are_equal_and_a_missing_one_is_written_again(
    pictures, tmp_path, monkeypatch, capsys
):
    sparks.skip_without_spark()
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    path = pictures / "cats" / "cats_3.jpg"
    path.write_bytes(with_extraneous_bytes(path.read_bytes()))
    here = convert(pictures, tmp_path / "here")
    warning = f"{path}: Corrupt JPEG data: "
    assert capsys.readouterr().out.count(warning) == 1
    there = convert(pictures, tmp_path / "there", f"--spark={sparks.LOCAL_CLUSTER}")
    assert capsys.readouterr().out.count(warning) == 1
    assert here == there
    (tmp_path / "there" / "train-00001-of-00003").unlink()
    assert convert(pictures, tmp_path / "there", f"--spark={sparks.LOCAL_CLUSTER}") == here


def test_what_an_executor_left_out_stays_known_when_the_driver_was_stopped(pictures, tmp_path):
    for number in (1, 3, 5):
        (pictures / "cats" / f"cats_{number}.jpg").write_bytes(b"")
    whole = convert(pictures, tmp_path / "whole", "--skip_broken")
    source = PictureSource(images.find(str(pictures))["train"], JPEG)
    (tmp_path / "out").mkdir()
    for index in (0, 2):
        path = tmp_path / "out" / f"train-0000{index}-of-00003"
        part = source.part(range(index, len(source), 3))
        conversion._write_one(Options(skip_broken=True), (str(path), part))
    found = convert(pictures, tmp_path / "out", "--skip_broken")
    assert found.keys() == whole.keys()
    assert found["broken.txt"] == whole["broken.txt"]


def test_a_data_frame_gives_the_files_that_one_machine_makes_of_its_rows(pictures, tmp_path):
    found = images.find(str(pictures))["train"]
    local = {"train": 3}
    convert_module.write(images.INFO, {"train": found}, str(tmp_path / "here"), num_shards=local)
    rows = [(bytearray(item.read()), item.label, item.name) for item in found.items]
    with sparks.session() as session:
        frame = session.createDataFrame(rows, "image binary, label int, filename string")
        convert_rows = functools.partial(
            conversion.convert_frame, frame, str(tmp_path / "there"), "train", found.class_names
        )
        convert_rows(num_shards=3)
        files = {path.name: path for path in (tmp_path / "here").glob("train-*")}
        assert len(files) == 3
        for name, path in files.items():
            assert (tmp_path / "there" / name).read_bytes() == path.read_bytes()
        (tmp_path / "there" / "train-00002-of-00003").unlink()
        convert_rows(num_shards=3)
        missing = "train-00002-of-00003"
        assert (tmp_path / "there" / missing).read_bytes() == files[missing].read_bytes()
        wrong = session.createDataFrame([(rows[0][0], 7)], "image binary, label int")
        with pytest.raises(ValueError, match="label 7; allowed are 0 to 2"):
            conversion.convert_frame(wrong, str(tmp_path / "bad"), "train", found.class_names)


def test_law_10_a_broken_picture_is_named(pictures, tmp_path, monkeypatch):
    sparks.skip_without_spark()
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    broken = pictures / "cats" / "cats_3.jpg"
    broken.write_bytes(broken.read_bytes()[:40])
    shutil.rmtree(tmp_path / "records", ignore_errors=True)
    with pytest.raises(SystemExit, match=r"cats/cats_3\.jpg: "):
        convert(pictures, tmp_path / "records", f"--spark={sparks.LOCAL_CLUSTER}")
