"""Runs a program: parses its flags, prints help by group, reports user errors in one line."""

import contextlib
import gc
import inspect
import io
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from absl import flags

from terngrad import allocator, outputs

_NOISE = (  # the last is the second line of a message
    r"^I[0-9]{4} |^WARNING: All log messages before absl::InitializeLog"
    "|^To enable the following instructions: "
)
_STOP_TEXTS: list[str] = []  # of the open blocks of `reporting_stop`
_END_OF_SPINNER = "\r\x1b[K\x1b[?25h"  # clears the line and shows the cursor
_HELP = ("--help", "-help", "-h", "--helpfull", "--helpshort")


def run(
    main: Callable[[flags.FlagValues], None],
    define: Callable[[flags.FlagValues], None],
    argv: Sequence[str] | None = None,
    *,
    positional: Sequence[str] = (),
    description: str | None = None,
) -> None:
    """Parses the flags that `define` defines and calls `main` with them.

    With --help it prints the help and returns. A bad flag, ValueError, OSError or MemoryError
    becomes one line on stderr and exit status 1. Ctrl-C, SIGTERM and a closed pipe become exit
    status 130, 143 and 141. Bugs keep their traceback.

    Args:
      main: imports TensorFlow within `quiet_import`, so that help and flag errors are quick.
      define: defines the program's flags.
      argv: the program's name and its arguments; None = those of the process.
      positional: flags that may also be given by their values alone, in this order.
      description: first part of the help; None = the docstring of main's module.
    """
    program, *arguments = sys.argv if argv is None else argv
    values = flags.FlagValues()
    define(values)
    # Escapes what its encoding lacks, as stderr does.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if any(argument in _HELP for argument in arguments):
            text = inspect.getmodule(main).__doc__ if description is None else description
            print(help_text(text or "", values), flush=True)
            return
        parse(values, arguments, positional)
        if "log_device_placement" in values and values.log_device_placement:
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0")  # placements are of level INFO
        if argv is None:
            allocator.restart_with_huge_pages()
        main(values)
    except BrokenPipeError:
        outputs.discard(sys.stdout.fileno())  # its reader, such as `head`, has closed the pipe
        sys.exit(128 + signal.SIGPIPE)
    except (flags.Error, ValueError, OSError, MemoryError) as error:
        why = " ".join(str(error).split()) or "out of memory"
        sys.exit(f"{Path(program).stem}: {why}")
    except ModuleNotFoundError as error:
        if error.name not in ("tensorflow", "keras"):
            raise
        sys.exit("TensorFlow is not installed: pip install '.[cpu]', or '.[gpu]' for NVIDIA GPUs")
    except (KeyboardInterrupt, _Terminated) as stop:
        sys.exit(128 + _signal_of(stop))


@contextlib.contextmanager
def reporting_stop(text: str) -> Iterator[None]:
    """Prints the signal's name and `text` if Ctrl-C or SIGTERM ends the block."""
    _STOP_TEXTS.append(text)
    try:
        yield
    except (KeyboardInterrupt, _Terminated) as stop:
        print(f"{_signal_of(stop).name}: {text}", flush=True)
        raise
    finally:
        _STOP_TEXTS.pop()


class _Terminated(BaseException):
    """Raised at SIGTERM, as KeyboardInterrupt is at SIGINT."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated("stopped by SIGTERM")


@contextlib.contextmanager
def _ending_at_once() -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM end the process at once, for a block that only imports.

    An exception would not do: modules in C replace it by one of their own, with a traceback.
    """
    replaced = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) in (signal.default_int_handler, _terminate):
                replaced[number] = signal.signal(number, _exit_at_once)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def _exit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    end_at_once(signal.Signals(number), *reversed(_STOP_TEXTS))


def end_at_once(stop: signal.Signals, *texts: str) -> NoReturn:
    """Ends the process, from any thread, with a line for each text and the signal's status.

    For threads whose exceptions would not end the process. No `finally` runs.
    """
    output = getattr(sys.stdout, "rich_proxied_file", sys.stdout)  # beneath a spinner's
    with contextlib.suppress(OSError, RuntimeError):  # the reader has gone, or print was running
        if output.isatty():  # a spinner may be running, which hides the cursor
            output.write(_END_OF_SPINNER)
        for text in texts:
            print(f"{stop.name}: {text}", file=output)
        output.flush()
    os._exit(128 + stop)


def _signal_of(stop: BaseException) -> signal.Signals:
    return signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT


@contextlib.contextmanager
def quiet_import(log_level: str = "2") -> Iterator[None]:
    """Loads TensorFlow without its lines on stderr, for a block that imports modules that need it.

    TensorFlow writes some lines while it loads, whatever its log level. This takes a third less
    time than a plain import.

    oneDNN computes, unless the environment says otherwise. TensorFlow's own choice is not to use it
    on processors without AVX512-VNNI or its like, where it is up to three times as fast.

    Args:
      log_level: lowest level of TensorFlow's own messages that are shown (0 to 3; 2 = errors,
        3 = fatal errors), unless the environment sets another one.
    """
    is_first = "tensorflow" not in sys.modules
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", log_level)
    with _filtered_stderr(["grep", "-vE", _NOISE]), _uncollected(), _ending_at_once():
        # Keras would load them for pictures and tables that no program has.
        with _hidden("matplotlib"), _hidden("pandas"):
            import tensorflow  # noqa: F401
        yield
        if is_first:
            gc.freeze()  # later collections skip the many objects that stay


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Turns garbage collection off for a block that creates little garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Lets imports of a module fail, unless it is loaded already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None
    try:
        yield
    finally:
        del sys.modules[module]


@contextlib.contextmanager
def _filtered_stderr(command: Sequence[str]) -> Iterator[None]:
    """Pipes stderr through a command.

    The filter is a process of its own, so that the last lines before a crash still appear. A
    signal that stops this process does not stop the filter.
    """
    stderr = os.dup(2)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # as from here
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=stderr, start_new_session=True, env=env
    ) as process:
        os.dup2(process.stdin.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def parse(
    values: flags.FlagValues, arguments: Sequence[str], positional: Sequence[str] = ()
) -> None:
    """Parses arguments, without the program's name. The error names the bad argument.

    Args:
      values: the defined flags.
      arguments: those after the program's name.
      positional: flags that may also be given by their values alone, in this order.
    """
    values.set_gnu_getopt(bool(positional))  # such a value may stand before flags
    _, *rest = values(["", *_join_booleans(values, arguments)])
    open_names = [name for name in positional if not values[name].present]
    given = list(zip(open_names, rest, strict=False))
    values(["", *(f"--{name}={value}" for name, value in given)])
    rest = rest[len(given) :]
    if rest:
        raise ValueError(f"unexpected argument '{rest[0]}': flags are written --name=value")


def is_set(name: str, arguments: Sequence[str]) -> bool:
    """Whether a program's arguments set a boolean flag that is False by default.

    It is read as `parse` does, but the program's other flags are not known. A bad value counts as
    False: the program will name it.
    """
    values = flags.FlagValues()
    flags.DEFINE_boolean(name, False, "", flag_values=values)
    values.set_gnu_getopt()  # values of other flags may stand before it
    try:
        values(["", *_join_booleans(values, arguments)], known_only=True)
    except flags.Error:
        return False
    return values[name].value


def _join_booleans(values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with `--flag True` of a boolean flag as `--flag=True`.

    absl reads a boolean flag alone as True and would then stop at the word after it.
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
