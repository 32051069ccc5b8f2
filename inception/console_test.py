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
    assert len({console.command_of(module) for module in programs}) == len(programs)
