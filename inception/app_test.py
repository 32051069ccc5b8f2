"""A sketch of a program.

Its flags are few.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from inception import app
from inception.flags import table
from inception.flags.table import BOOLEAN, TEXT, at_least
from terngrad.testing.limits import HANG_SECS


def define(values: flags.FlagValues) -> None:
    """Three flags in two groups."""
    sources = [
        ("data_dir", table.Flag("Data", TEXT, "folder"), "/tmp/data"),
        ("steps", table.Flag("Training", at_least(1), "length", "steps"), 10),
        ("deep", table.Flag("Training", BOOLEAN, "more layers"), False),
    ]
    for name, entry, default in sources:
        table.define_one(name, entry, default, values)


def parsed(*arguments: str) -> flags.FlagValues:
    """The flags after parsing."""
    values = flags.FlagValues()
    define(values)
    app.parse(values, arguments)
    return values


@pytest.mark.parametrize(
    ("arguments", "deep"),
    [
        ([], False),
        (["--deep"], True),
        (["--nodeep"], False),
        (["--deep", "False"], False),
        (["--deep", "false", "--steps", "3"], False),
        (["--deep", "--steps", "3"], True),
    ],
)
def test_a_boolean_flag_may_have_its_value_after_it(arguments, deep):
    assert parsed(*arguments).deep is deep


@pytest.mark.parametrize(
    ("arguments", "deep"),
    [
        ([], False),
        (["--deep"], True),
        (["--deep", "False", "--steps=3"], False),
        (["--deep", "--steps=3"], True),
        (["--data_dir", "here", "--deep=t"], True),
        (["--deep", "--nodeep"], False),
        (["--deep=perhaps"], False),
    ],
)
def test_a_boolean_flag_is_read_beside_flags_that_are_not_known(arguments, deep):
    assert app.is_set("deep", arguments) is deep


def test_a_word_after_another_flag_stays_its_value():
    assert parsed("--data_dir", "True", "--steps", "4").data_dir == "True"


@pytest.mark.parametrize(
    "arguments",
    [
        ["here", "--deep", "True", "4"],
        ["--steps=4", "--deep=True", "here"],
        ["--data_dir", "here", "--deep=True", "4"],
    ],
)
def test_positional_flags_may_stand_before_and_after_others(arguments):
    given = []
    app.run(given.append, define, ["program", *arguments], positional=("data_dir", "steps"))
    (values,) = given
    assert (values.data_dir, values.steps, values.deep) == ("here", 4, True)


def test_a_bad_or_surplus_positional_value_is_named():
    for words, message in (
        (["here", "0"], "flag --steps=0: must be an integer >= 1 and <= 2147483647"),
        (["here", "4", "5"], "unexpected argument '5': flags are written --name=value"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            app.run(pytest.fail, define, ["program", *words], positional=("data_dir", "steps"))
        assert exit_info.value.code == f"program: {message}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step=3"], "Unknown command line flag 'step'. Did you mean: steps ?"),
        (["--steps=0"], "flag --steps=0: must be an integer >= 1 and <= 2147483647"),
        (["--steps"], "Missing value for flag --steps"),
        (["--deep", "perhaps"], "flag --deep=perhaps: must be True or False"),
        (["--deep", "extra", "words"], "flag --deep=extra: must be True or False"),
    ],
)
def test_a_bad_argument_ends_with_one_line_that_names_it(arguments, message):
    with pytest.raises(SystemExit) as exit_info:
        app.run(pytest.fail, define, ["some/program.py", *arguments])
    assert exit_info.value.code == f"program: {message}"


@pytest.mark.parametrize("error", [ValueError("two\n lines"), FileNotFoundError("two lines")])
def test_an_error_of_the_user_is_one_line(error):
    def main(values):
        raise error

    with pytest.raises(SystemExit) as exit_info:
        app.run(main, define, ["program"])
    assert exit_info.value.code == "program: two lines"


def test_a_missing_tensorflow_is_named_with_what_installs_it():
    def main(values):
        raise ModuleNotFoundError(name="tensorflow")

    with pytest.raises(SystemExit, match=r"pip install '\.\[cpu\]'"):
        app.run(main, define, ["program"])


def test_a_bug_keeps_its_traceback():
    def main(values):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        app.run(main, define, ["program"])


@pytest.mark.parametrize("flag", ["--help", "-h", "--helpfull"])
def test_help_lists_the_flags_by_group_with_default_and_unit(flag, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    app.run(test_a_bug_keeps_its_traceback, define, ["program", "--steps=7", flag])
    assert capsys.readouterr().out == (
        "A sketch of a program.\n\nIts flags are few.\n\n"
        "Data:\n  --data_dir folder [/tmp/data]\n\n"
        "Training:\n  --steps    length [10 steps]\n  --deep     more layers [False]\n"
    )


@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_runs_the_cleanup_and_ends_with_a_line_instead_of_a_traceback(
    number, status, tmp_path
):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, time\n"
        "from inception import app\n"
        "def main(values):\n"
        "    with app.reporting_stop('nothing is lost.'):\n"
        "        try:\n"
        f"            os.kill(os.getpid(), signal.{number})\n"
        "            time.sleep(60)\n"
        "        finally:\n"
        "            print('cleaned up')\n"
        "app.run(main, lambda values: None)\n"
    )
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    expected = f"cleaned up\n{number}: nothing is lost.\n"
    assert (done.returncode, done.stdout, done.stderr) == (status, expected, "")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_modules_are_imported_ends_the_program_with_its_line(number, tmp_path):
    (tmp_path / "slow_module.py").write_text(
        "import os, signal\n"
        "try:\n"  # as modules in C do
        f"    os.kill(os.getpid(), {number})\n"
        "    while True: pass\n"
        "except BaseException as error:\n"
        "    raise ImportError('failed to load') from error\n"
    )
    program = tmp_path / "program.py"
    program.write_text(
        "from inception import app\n"
        "def main(values):\n"
        "    print('begins')\n"
        "    with app.reporting_stop('nothing is lost.'), app.quiet_import():\n"
        "        import slow_module\n"
        "app.run(main, lambda values: None)\n"
    )
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        timeout=HANG_SECS,
        env=os.environ | {"PYTHONPATH": f"{os.getcwd()}{os.pathsep}{tmp_path}"},
    )
    expected = f"begins\n{number.name}: nothing is lost.\n"
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, expected, "")


@pytest.mark.slow
def test_a_quiet_import_drops_infos_and_keeps_the_rest_even_of_a_crash(tmp_path):
    code = (
        "import os\n"
        "from inception import app\n"
        "with app.quiet_import():\n"
        "    os.write(2, b'I0000 00:00:1 port.cc:153] on\\nW0000 00:00:1 gpu.cc:1] none\\n')\n"
        "os.write(2, b'I0000 after\\n')\n"
        "with app.quiet_import():\n"
        "    os.write(2, b'F0000 no AVX\\n')\n"
        "    os.abort()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGABRT
    assert done.stderr == "W0000 00:00:1 gpu.cc:1] none\nI0000 after\nF0000 no AVX\n"


def test_a_closed_pipe_ends_a_program_without_a_traceback():
    command = f"{sys.executable} -m inception.mnist_train --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=HANG_SECS,
        check=False,
    )
    assert not done.stderr
    assert done.stdout.strip() in ("0", "141")  # 0: all was written before the pipe was closed
