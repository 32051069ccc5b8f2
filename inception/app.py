"""Runs a program: flags, help by group, one line for a user's error."""

import contextlib
import gc
import inspect
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from absl import flags

_NOISE = r"^I[0-9]{4} |^WARNING: All log messages before absl::InitializeLog"
_HELP = ("--help", "-help", "-h", "--helpfull", "--helpshort")


def run(
    main: Callable[[flags.FlagValues], None],
    define: Callable[[flags.FlagValues], None],
    argv: Sequence[str] | None = None,
    *,
    description: str | None = None,
    log_level: str = "2",
) -> None:
    """Parses the flags that `define` defines and calls `main` with them.

    Prints the help and returns for --help. A bad flag, ValueError and OSError become one line on
    stderr and exit status 1; Ctrl-C, SIGTERM and a closed pipe become exit status 130, 143 and 141;
    bugs keep their traceback.

    Args:
      main: imports TensorFlow itself, within `quiet_import`, so that help and errors are quick.
      define: defines the program's flags.
      argv: the program's name and its arguments; None for those of the process.
      log_level: from which on TensorFlow's own messages are shown, 0 to 3, unless the environment
        says otherwise; 2 are errors, 3 fatal ones.
      description: the help's beginning; None for the docstring of main's module.
    """
    program, *arguments = sys.argv if argv is None else argv
    values = flags.FlagValues()
    define(values)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if any(argument in _HELP for argument in arguments):
            text = inspect.getmodule(main).__doc__ if description is None else description
            print(help_text(text or "", values), flush=True)
            return
        parse(values, arguments)
        # TensorFlow writes placements as INFO; else only errors are of interest.
        placement = "log_device_placement" in values and values.log_device_placement
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if placement else log_level)
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # a ps filters what else it would say
        main(values)
    except BrokenPipeError:
        stop_writing()
        sys.exit(128 + signal.SIGPIPE)
    except (flags.Error, ValueError, OSError) as error:
        sys.exit(f"{Path(program).stem}: {' '.join(str(error).split())}")
    except ModuleNotFoundError as error:
        if error.name not in ("tensorflow", "keras"):
            raise
        sys.exit("TensorFlow is not installed: pip install '.[cpu]', or '.[gpu]' for NVIDIA GPUs")
    except (KeyboardInterrupt, _Terminated) as stop:
        sys.exit(128 + _signal_of(stop))


def stop_writing() -> None:
    """Leaves out what else is printed: the reader of the output, `head` perhaps, has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def telling_stop(text: str) -> Iterator[None]:
    """Prints `text` behind the signal's name when Ctrl-C or SIGTERM ends the block."""
    try:
        yield
    except (KeyboardInterrupt, _Terminated) as stop:
        print(f"{_signal_of(stop).name}: {text}", flush=True)
        raise


class _Terminated(BaseException):
    """What KeyboardInterrupt is to SIGINT, for SIGTERM."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated("stopped by SIGTERM")


def _signal_of(stop: BaseException) -> signal.Signals:
    return signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Loads TensorFlow, for a block that imports what needs it, without its lines on stderr.

    Whatever its log level it writes some as it loads. It takes a third less time than a plain
    import does.
    """
    is_first = "tensorflow" not in sys.modules
    with filtered_stderr(["grep", "-vE", _NOISE]), _uncollected():
        with _hidden("matplotlib"):  # Keras would load it, for pictures that no program draws
            import tensorflow  # noqa: F401
        yield
        if is_first:
            gc.freeze()  # the many objects that stay are not looked through later, either


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Looks for no garbage in a block that makes little of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Lets imports of a module fail that is not loaded yet."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None
    try:
        yield
    finally:
        del sys.modules[module]


@contextlib.contextmanager
def filtered_stderr(command: Sequence[str]) -> Iterator[None]:
    """Writes to stderr what a command makes of it.

    A process filters, not this one, so that the last words of a crash are still heard; what stops
    this process does not stop it.
    """
    stderr = os.dup(2)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=stderr, start_new_session=True
    ) as process:
        os.dup2(process.stdin.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def parse(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Parses arguments (without the program's name); the error raised names the bad one."""
    _, *rest = values(["", *join_booleans(values, arguments)])
    if rest:
        raise ValueError(f"unexpected argument '{rest[0]}': flags are written --name=value")


def join_booleans(values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with `--flag True` of a boolean flag as `--flag=True`.

    A boolean flag alone means True for absl, which would then stop at the stray word.
    """
    joined: list[str] = []
    for argument in arguments:
        name = joined[-1].lstrip("-") if joined and joined[-1].startswith("-") else ""
        if name in values and values[name].boolean and not argument.startswith("-"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def help_text(description: str, values: flags.FlagValues) -> str:
    """Returns the description and the flags by group, each with its default and unit."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 100)
    column = max(len(name) for name in values) + 5
    blocks = [inspect.cleandoc(description)]
    for group, members in values.flags_by_module_dict().items():
        lines = (_flag_help(member, column, width) for member in members)
        blocks.append("\n".join((f"{group}:", *lines)))
    return "\n\n".join(blocks)


def _flag_help(flag: flags.Flag, column: int, width: int) -> str:
    first = f"  --{flag.name}".ljust(column)
    return textwrap.fill(flag.help, width, initial_indent=first, subsequent_indent=" " * column)
