"""What the benchmarks print of their rows."""

import os

import pytest

from benchmarks import report


def test_cells_that_look_like_markup_are_printed_as_they_are(capsys):
    report.print_table([{"net[x]": "/a[/b]", "ms": 1}, {"net[x]": "c[v3]:smile:"}], "t[y]")
    printed = capsys.readouterr().out
    for text in ("t[y]", "| net[x] ", "| /a[/b] ", "| c[v3]:smile: "):
        assert text in printed


@pytest.mark.parametrize("flag", ["json", "png"])
def test_a_file_that_cannot_be_written_is_refused_at_the_start(flag, monkeypatch, tmp_path):
    began = []

    def run(path):
        monkeypatch.setattr("sys.argv", ["program", f"--{flag}={path}"])
        report.run(lambda options: began.append(options), report.PictureOptions)

    with pytest.raises(SystemExit, match=f"^program: flag --{flag}=/proc/no/x: /proc/no is not wr"):
        run("/proc/no/x")
    with pytest.raises(SystemExit, match=f"^program: flag --{flag}={tmp_path}: is a folder; it mu"):
        run(tmp_path)
    assert not began
    run(tmp_path / "results" / "x")
    assert began and os.listdir(tmp_path / "results") == []
