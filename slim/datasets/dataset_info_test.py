"""Laws of labels.txt: it names every label, and a wrong line is named."""

import pytest

from slim.datasets.dataset_info import check_labels, read_labels, write_labels


def _write(folder, content):
    (folder / "labels.txt").write_bytes(content.encode() if isinstance(content, str) else content)
    return str(folder)


def test_ids_count_from_0_or_from_1_with_the_background_before(tmp_path):
    assert read_labels(_write(tmp_path, "0:rose\n1:tulip\n")) == ("rose", "tulip")
    expected = ("background", "rose", "tulip: red")
    assert read_labels(_write(tmp_path, "1:rose\n2:tulip: red\n\n")) == expected
    assert read_labels(_write(tmp_path, "0:background\n1:rose\n2:tulip: red")) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0:rose\n2:tulip\n", r"line 2 is '2:tulip', must be 1:name"),
        ("0:rose\n\n2:tulip\n", r"line 3 is '2:tulip', must be 1:name"),
        ("1:rose\n1:tulip\n", r"line 2 is '1:tulip', must be 2:name"),
        ("rose\ntulip\n", r"line 1 is 'rose', must be 1:name"),
        ("0:rose\n1:\n", r"line 2 is '1:', must be 1:name"),
        ("\n", r"labels.txt is empty; it must have a line id:name for each class"),
        (b"0:\xff\xfe", r"labels.txt: cannot be read \('utf-8' codec"),
    ],
)
def test_a_malformed_file_is_named_with_the_line(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_labels(_write(tmp_path, content))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"labels.txt is missing; it has a line id:name"):
        read_labels(str(tmp_path))


def test_what_was_written_is_read(tmp_path):
    names = ("background", "rose", "tulip: red")
    write_labels(str(tmp_path), names)
    assert read_labels(str(tmp_path)) == names
    check_labels(str(tmp_path), names, "the records")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("rose",), "names 2 classes, the records have 1"),
        (("rose", "lily"), "label 1 is 'tulip'; in the records it is 'lily'"),
    ],
)
def test_classes_that_differ_are_named(tmp_path, names, message):
    write_labels(str(tmp_path), ("rose", "tulip"))
    with pytest.raises(ValueError, match=message):
        check_labels(str(tmp_path), names, "the records")


def test_a_folder_without_labels_differs_from_nothing(tmp_path):
    check_labels(str(tmp_path), ("rose",), "the records")
