"""Boxes go to the output, counts to stderr."""

import io
import os
import shutil
import sys

import pytest

from inception.testing.runs import run_program

_PROGRAM = "inception.data.process_bounding_boxes"
_XML = """<annotation><size><width>200</width><height>100</height></size><object>
<name>{}</name><bndbox><xmin>{}</xmin><ymin>25</ymin><xmax>150</xmax><ymax>120</ymax></bndbox>
</object></annotation>"""


@pytest.fixture(name="folder")
def _folder(tmp_path):
    for synset, xmin in (("n00007846", 20), ("n01440764", 150)):
        (tmp_path / "boxes" / synset).mkdir(parents=True)
        path = tmp_path / "boxes" / synset / f"{synset}_1.xml"
        path.write_text(_XML.format(synset, xmin))
    return tmp_path / "boxes"


def test_boxes_become_lines_and_odd_ones_are_counted(folder, capsys):
    run_program(_PROGRAM, folder)
    printed = capsys.readouterr()
    assert printed.out == "n00007846_1.JPEG,0.1000,0.2500,0.7500,1.0000\n"
    assert printed.err == (
        "Finished processing 2 XML files. Boxes: 1; mended ones among them: 1; "
        "dropped, as empty or of another class: 1.\n"
    )


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_names_of_files_are_printed_byte_for_byte(folder, monkeypatch, encoding):
    names = "n00007846_é中".encode(), b"n00007846_\xe9"
    for name in names:
        path = os.path.join(os.fsencode(folder), name + b".xml")
        shutil.copy(folder / "n00007846" / "n00007846_1.xml", path)
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", output)
    run_program(_PROGRAM, folder)
    output.flush()
    found = {line.split(b".JPEG")[0] for line in output.buffer.getvalue().splitlines()}
    assert found == {*names, b"n00007846_1"}


def test_only_the_synsets_of_the_file_are_taken(folder, tmp_path, capsys):
    (tmp_path / "synsets").write_text("n01440764\n")
    run_program(_PROGRAM, folder, tmp_path / "synsets")
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith(
        "Finished processing 1 XML files. Boxes: 0;"
    )


def test_faults_are_one_line(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for words, message in (
        ([], "--annotations=: must name a folder or tar archive of XML files"),
        ([tmp_path / "empty"], "empty: has no annotations"),
        ([tmp_path / "nowhere"], "--annotations=.*nowhere: cannot be read .No such file"),
        ([folder, folder / "n00007846" / "n00007846_1.xml", "more"], "unexpected argument 'more'"),
    ):
        with pytest.raises(SystemExit, match=f"^process_bounding_boxes: .*{message}"):
            run_program(_PROGRAM, *words)
