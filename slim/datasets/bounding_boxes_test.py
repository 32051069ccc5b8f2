"""Laws of bounding boxes: shares within the picture, odd ones mended or dropped, faults named."""

import io
import tarfile

import pytest

from slim.datasets import bounding_boxes


def _xml(*objects, size=(200, 100)):
    width, height = size
    boxes = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin>"
        f"<xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for name, a, b, c, d in objects
    )
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><filename>%s</filename>{size}{boxes}</annotation>".encode()


def _parse(*objects, name="n00007846_64193.xml", **options):
    return bounding_boxes.parse_annotation(_xml(*objects, **options), name, f"dir/{name}")


def test_corners_become_shares_of_the_picture():
    found = _parse(("n00007846", 20, 25, 150, 100), ("n00007846", 0, 0, 200, 100))
    assert found.picture == "n00007846_64193.JPEG" and found.synset == "n00007846"
    assert found.boxes == ((0.1, 0.25, 0.75, 1.0), (0.0, 0.0, 1.0, 1.0))
    assert (found.num_mended, found.num_dropped) == (0, 0)
    assert list(bounding_boxes.csv_lines(found)) == [
        "n00007846_64193.JPEG,0.1000,0.2500,0.7500,1.0000",
        "n00007846_64193.JPEG,0.0000,0.0000,1.0000,1.0000",
    ]


def test_exchanged_and_outlying_corners_are_mended():
    found = _parse(("n00007846", 150, 25, 20, 100), ("n00007846", -20, 50, 300, 100))
    assert found.boxes == ((0.1, 0.25, 0.75, 1.0), (0.0, 0.5, 1.0, 1.0))
    assert (found.num_mended, found.num_dropped) == (2, 0)


def test_empty_boxes_and_those_of_another_synset_are_dropped():
    found = _parse(
        ("n00007846", 20, 25, 20, 100),
        ("n00007846", 210, 0, 300, 50),
        ("n99999999", 0, 0, 100, 100),
        ("Scottish_deerhound", 0, 0, 100, 100),
    )
    assert found.boxes == ((0.0, 0.0, 0.5, 1.0),)
    assert (found.num_mended, found.num_dropped) == (0, 3)


def test_a_validation_picture_has_the_synset_of_its_object():
    found = _parse(("n01751748", 0, 0, 100, 100), name="ILSVRC2012_val_00000001.xml")
    assert found.synset_of_picture == "n01751748" and len(found.boxes) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<annotation>",
        b"<annotation></annotation>",
        _xml(("n1", 1, 1, 2, 2), size=(0, 9)),
        _xml(("n1", "x", 1, 2, 2)),
    ],
)
def test_a_file_that_is_no_annotation_is_named(content):
    with pytest.raises(ValueError, match=r"dir/a\.xml: not an annotation of a picture"):
        bounding_boxes.parse_annotation(content, "a.xml", "dir/a.xml")


def test_a_folder_its_folders_and_an_archive_give_the_same(tmp_path):
    folder = tmp_path / "boxes"
    (folder / "n00007846").mkdir(parents=True)
    content = _xml(("n00007846", 20, 25, 150, 100))
    (folder / "n00007846" / "n00007846_1.xml").write_bytes(content)
    (folder / "n00007846_2.xml").write_bytes(content)
    (folder / "n00007846_3.XML").write_bytes(content)
    (folder / "n00007846" / "._n00007846_1.xml").write_bytes(b"hidden")
    (folder / "README").write_text("no annotation")
    with tarfile.open(tmp_path / "boxes.tar.gz", "w:gz") as archive:
        archive.add(folder, "boxes")
    expected = {f"n00007846_{n}.JPEG": ((0.1, 0.25, 0.75, 1.0),) for n in (1, 2, 3)}
    assert bounding_boxes.read_boxes(str(folder)) == expected
    assert bounding_boxes.read_boxes(str(tmp_path / "boxes.tar.gz")) == expected


def test_a_bad_annotation_in_an_archive_is_named_with_the_archive(tmp_path):
    with tarfile.open(tmp_path / "boxes.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("val/x.xml")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"<a"))
    with pytest.raises(ValueError, match=r"boxes\.tgz: val/x\.xml: not an annotation"):
        bounding_boxes.read_boxes(str(tmp_path / "boxes.tgz"))


def test_a_csv_file_is_read_as_it_was_written(tmp_path):
    for name in ("boxes.csv", "boxes.txt", "boxes"):
        path = tmp_path / name
        path.write_text("a.JPEG,0.1000,0.2500,0.7500,1.0000\nb.JPEG,0,0,1,1\na.JPEG,0,0,0.5,1\n")
        assert bounding_boxes.read(str(path)) == {
            "a.JPEG": ((0.1, 0.25, 0.75, 1.0), (0.0, 0.0, 0.5, 1.0)),
            "b.JPEG": ((0.0, 0.0, 1.0, 1.0),),
        }


def test_what_is_neither_boxes_nor_annotations_is_named_as_what_it_should_be(tmp_path):
    for name, message in (
        ("boxes.txt", r"boxes\.txt: line 1 is 'no box', must be NAME,xmin,ymin,xmax,ymax"),
        ("boxes.tgz", r"boxes\.tgz: damaged archive"),
    ):
        (tmp_path / name).write_text("no box\n")
        with pytest.raises(ValueError, match=message):
            bounding_boxes.read(str(tmp_path / name))


@pytest.mark.parametrize(
    "line", ["a.JPEG", "a.JPEG,0,0,1", "a.JPEG,0,0,1,2", "a.JPEG,0.5,0,0.1,1", "a.JPEG,0,0,nan,1"]
)
def test_a_line_that_is_no_box_is_named(tmp_path, line):
    path = tmp_path / "boxes.csv"
    path.write_text(f"a.JPEG,0,0,1,1\n{line}\n")
    with pytest.raises(ValueError, match=rf"boxes\.csv: line 2 is '{line}', must be NAME,xmin"):
        bounding_boxes.read_csv(str(path))
