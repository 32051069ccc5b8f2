"""Compiles service.proto into a module, from which messages.py makes its classes.

python -m terngrad.service.build

The module holds a descriptor and no generated code, so that it works with all versions of protobuf.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from terngrad.service.compiled import FOLDER, MODULE, PROTO, digest

_TEXT = '''"""service.proto, as `python -m terngrad.service.build` compiled it. Do not edit."""

DIGEST = "{digest}"
DESCRIPTOR = {descriptor!r}
'''


class BuildError(RuntimeError):
    """The message is one line: what is missing, or the compiler's error."""


def build(folder: str = FOLDER, force: bool = False) -> str:
    """Writes the module into `folder`, unless it is up to date.

    Returns:
      The module's path.

    Raises:
      BuildError: grpcio-tools is missing, its compiler fails, or `folder` is not writable.
    """
    output = os.path.join(folder, f"{MODULE}.py")
    if not force and _holds_this_text(output):
        return output
    try:
        # Written to a temporary folder first: an interrupted build leaves no unfinished module.
        with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as unfinished:
            descriptor = _compile(os.path.join(unfinished, "service.pb"))
            written = os.path.join(unfinished, f"{MODULE}.py")
            with open(written, "w") as file:
                file.write(_TEXT.format(digest=digest(), descriptor=descriptor))
            os.replace(written, output)
    except PermissionError:
        raise BuildError(f"{folder} is not writable") from None
    return output


def _holds_this_text(path: str) -> bool:
    if not os.path.exists(path):
        return False
    with open(path) as file:
        return f'DIGEST = "{digest()}"' in file.read()


def _compile(output: str) -> bytes:
    """Runs the compiler in its own process: it crashes in a process that has loaded TensorFlow."""
    folder, name = os.path.split(PROTO)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", name]
    done = subprocess.run(
        [*command, f"--descriptor_set_out={output}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = "".join(done.stderr.strip().splitlines()[-1:])
        if "No module named" in last:
            raise BuildError("grpcio-tools is not installed: pip install grpcio-tools")
        raise BuildError(f"{PROTO} cannot be compiled: {last}")
    with open(output, "rb") as file:
        return file.read()


def main() -> None:
    """Builds the module; with --if-needed only if service.proto has changed."""
    folders = [word for word in sys.argv[1:] if not word.startswith("-")] or [FOLDER]
    if sys.argv[1:] not in ([], ["--if-needed"], folders):
        sys.exit("usage: python -m terngrad.service.build [--if-needed | FOLDER]")
    try:
        built = build(folders[0], force="--if-needed" not in sys.argv)
        print(f"Messages of the ps: {os.path.relpath(built)}")
    except BuildError as error:
        sys.exit(f"build: {error}")


if __name__ == "__main__":
    main()
