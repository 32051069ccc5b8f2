"""What the benchmarks print of their rows."""

from benchmarks import report


def test_cells_that_look_like_markup_are_printed_as_they_are(capsys):
    report.print_table([{"net[x]": "/a[/b]", "ms": 1}, {"net[x]": "c[v3]:smile:"}], "t[y]")
    printed = capsys.readouterr().out
    for text in ("t[y]", "| net[x] ", "| /a[/b] ", "| c[v3]:smile: "):
        assert text in printed
