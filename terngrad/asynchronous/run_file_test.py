"""The file that names the run in progress."""

import pytest

from terngrad.asynchronous.chief import RunFile


def test_a_run_is_noted_until_it_has_ended(tmp_path):
    file = RunFile(str(tmp_path))
    assert file.read() == ("", {})
    file.write("a run", {"seed": "1"})
    assert file.read() == ("a run", {"seed": "1"})
    file.remove()
    file.remove()
    assert file.read() == ("", {})


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"run": 1, "facts": 2}'])
def test_a_damaged_note_stands_for_no_run(tmp_path, text):
    (tmp_path / ".asynchronous_run").write_text(text)
    assert RunFile(str(tmp_path)).read() == ("", {})
