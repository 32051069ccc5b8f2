"""A file beside the chief's checkpoints that names the run in progress."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping

from terngrad import durable

_NAME = ".asynchronous_run"


class RunFile:
    """The name of the run in progress, and the configuration that all its workers share."""

    def __init__(self, train_dir: str) -> None:
        """Places the file in the folder of the checkpoints."""
        self._path = os.path.join(train_dir, _NAME)

    def read(self) -> tuple[str, dict[str, str]]:
        """Returns the run and its configuration; an empty name without a valid file."""
        try:
            with open(self._path, encoding="utf-8") as file:
                said = json.load(file)
            return str(said["run"]), dict(said["facts"])
        except (OSError, ValueError, TypeError, KeyError):
            return "", {}

    def write(self, run: str, configuration: Mapping[str, str]) -> None:
        """Writes the file of a run."""
        temporary = f"{self._path}.saving"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"run": run, "facts": dict(configuration)}, file)
        durable.publish(temporary, self._path)

    def remove(self) -> None:
        """Removes the file after the run has ended and was saved."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._path)
