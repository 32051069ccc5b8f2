"""Every program has a command of its own."""

import re
from pathlib import Path

from inception import console

_REPO = Path(__file__).parents[1]
_MAIN = re.compile(r'^if __name__ == "__main__":', re.MULTILINE)


def test_every_program_has_one_command():
    folders = ("inception", "inception/data", "slim")
    files = [file for folder in folders for file in (_REPO / folder).glob("*.py")]
    programs = {
        ".".join(file.relative_to(_REPO).with_suffix("").parts)
        for file in files
        if _MAIN.search(file.read_text())
    }
    programs.add("terngrad.launch")
    assert programs == set(console.MODULES)
    for module in programs:
        text = (_REPO / f"{module.replace('.', '/')}.py").read_text()
        before, guard, _ = text.partition("    starting.end_at_signals()\n")
        assert guard, f"{module} imports before Ctrl-C ends it in one line"
        assert before.count("import ") == 1 + before.count("from __future__ import "), module
    assert len({console.command_of(module) for module in programs}) == len(programs)
