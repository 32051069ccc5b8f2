"""Every command of the pages can be given as it stands there; docs/development.md says how."""

import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from docs import markdown
from docs.markdown import REPO
from inception import app
from inception.flags import command_line, table
from inception.sweeping import program, sweeper
from inception.sweeping.settings import SweepFlags, split
from terngrad.testing.processes import finished

_ADDED = "the data set above"  # whose name the flags learn on the page
NEEDS = {
    "a GPU",
    "Bazel",
    "Kubernetes",
    "Slurm",
    "Spark",
    "several machines",
    "root",
    "the network",
    "MPI",
    "Horovod",
    "CIFAR-10",
    "a browser",
    _ADDED,
}
_SHORT = {"max_steps": 4, "max_number_of_steps": 4}
_ALSO = {  # what makes the processes of a command quick
    "inception.mnist_eval": ["--num_examples=64"],
    "inception.mnist_distributed_train": ["--net=mlp"],
}
_OF_OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
_ASSIGNMENT = re.compile(r"([A-Z_]+)=")
_OWN_PARSERS = (
    "benchmarks.gpu_check",
    "benchmarks.gpu_ops_check",
    "inception.launch",
    "terngrad.launch",
    "terngrad.ops.build",
    "docs.draw_architecture",
    "docs.draw_augmentation",
    "docs.draw_codecs",
    "docs.write_flags",
    "tensorboard.main",
)


def _blocks() -> list[markdown.Block]:
    found = (block for page in markdown.pages() for block in markdown.blocks(page))
    return [block for block in found if block.language == "bash"]


every_block = pytest.mark.parametrize("block", _blocks(), ids=lambda block: block.place)


def _without_assignments(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits a command into the names of the variables before it, and the rest."""
    names = []
    words = list(words[1:] if words[0] == "export" else words)
    while words and (match := _ASSIGNMENT.match(words[0])):
        names.append(match[1])
        words.pop(0)
    return names, words


def _program(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Returns the module that a command runs, and its arguments; None for other commands."""
    words = list(itertools.takewhile(lambda word: word != ">", words))
    if "python" in words and "-m" in words:
        at = words.index("python") + len(["-m", "MODULE"])
        return words[at], list(words[at + 1 :])
    if any(word.endswith("launch_local.sh") for word in words):
        at = next(i for i, word in enumerate(words) if word.isdigit()) + 1
        return words[at], list(words[at + 1 :])
    return None


def _names(block: markdown.Block) -> Iterator[str]:
    """Yields the last part of each program or script of a block."""
    for words in block.commands():
        _, rest = _without_assignments(words)
        if found := _program(rest):
            yield found[0].rpartition(".")[2]
        elif rest and rest[0] == "bash":
            yield Path(rest[1]).name


@every_block
def test_a_command_names_programs_and_flags_that_exist(block):
    for words in block.commands():
        _, rest = _without_assignments(words)
        if found := _program(rest):
            module, arguments = found
            assert importlib.util.find_spec(module), f"{block.place}: no module {module}"
            if module not in _OWN_PARSERS and _ADDED not in block.marker:
                given = [argument for argument in arguments if argument != "..."]
                own, trainings = split(given)
                values = command_line.flags_of(module)
                app.parse(values, own, command_line.positional_of(module))
                if trainings:
                    app.parse(command_line.flags_of(values["program"].value), trainings)


def _sweeps() -> list[tuple[Sequence[str], Sequence[str]]]:
    """The flags of each sweep, and those of its trainings."""
    commands = (_program(words) for block in _blocks() for words in block.commands())
    return [split(found[1]) for found in commands if found and found[0] == "inception.sweep"]


@pytest.mark.parametrize(("own", "trainings"), _sweeps(), ids=str)
def test_each_flag_that_a_sweep_tries_has_an_effect(own, trainings, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # one sets a bandwidth
    values = command_line.flags_of("inception.sweep")
    app.parse(values, own)
    settings = table.read(SweepFlags, values)
    sweeper.make_plan(settings, program.find_program(settings.program, ""), trainings)
    assert "has no effect" not in capsys.readouterr().out


@every_block
def test_a_command_names_scripts_and_variables_that_exist(block):
    sources = [*REPO.glob("scripts/*.sh"), *REPO.glob("terngrad/**/*.py"), REPO / "setup.py"]
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    for words in block.commands():
        names, rest = _without_assignments(words)
        for name in set(names) - _OF_OPEN_MPI:
            assert re.search(rf"\b{name}\b", text), f"{block.place}: nothing reads {name}"
        if rest and rest[0] == "bash":
            assert (REPO / rest[1]).is_file(), f"{block.place}: no script {rest[1]}"


@every_block
def test_a_comment_before_a_block_says_what_is_true(block):
    kind, _, rest = block.marker.partition(": ")
    if kind == "needs":
        assert set(rest.split(", ")) <= NEEDS
    elif kind == "tested":
        text = (REPO / rest).read_text(encoding="utf-8")
        variables = {name for words in block.commands() for name in _without_assignments(words)[0]}
        missing = [name for name in _names(block) if name not in text]
        assert not missing or (variables and all(name in text for name in variables))
    elif kind == "as in":
        there = [b for b in markdown.blocks(REPO / rest) if b.marker == "run"]
        known = [words for other in there for words in other.commands()]
        assert all(words in known for words in block.commands())
    elif kind == "own tests":
        for words in block.commands():
            module, _ = _program(words)
            assert (REPO / f"{module.replace('.', '/')}_test.py").is_file()
    else:
        assert kind == "run"


def _pages_that_run() -> Iterator[object]:
    """The front page has all kinds of commands, so that others are one more variation."""
    for page in markdown.pages():
        if any(block.marker == "run" for block in markdown.blocks(page)):
            marks = [] if page.name in ("README.md", "security.md") else pytest.mark.exhaustive
            yield pytest.param(page, marks=marks, id=page.name)


def _shortened(words: Sequence[str], folder: Path) -> list[str]:
    """Returns a command that does the same in few steps, below a folder instead of /tmp.

    It starts Python's programs in a way in which tests can fork them.
    """
    short = [word.replace("/tmp/", f"{folder}/") for word in words]
    for name, steps in _SHORT.items():
        short = [re.sub(rf"^--{name}=.*", f"--{name}={steps}", word) for word in short]
    program, _ = _program(words) or ("", [])
    short += _ALSO.get(program, [])
    if short[1] == "scripts/launch_local.sh":
        return [sys.executable, "-m", "inception.testing.forked_launch", *short[2:]]
    return [sys.executable if word == "python" else word for word in short]


@pytest.mark.slow
@pytest.mark.parametrize("page", [*_pages_that_run()])
def test_the_commands_of_a_page_run_in_their_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(REPO)
    monkeypatch.setenv("TERNGRAD_VENV", sys.prefix)
    for block in markdown.blocks(page):
        for words in block.commands() if block.marker == "run" else ():
            ((output, status),) = finished([_shortened(words, tmp_path)])
            assert status == 0, f"{block.place}: {output}"
