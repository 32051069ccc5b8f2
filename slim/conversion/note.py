"""conversion.json: what the records beside it were made from, so that a conversion can go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Sequence
from typing import Any

from slim.datasets import files

_FILE = "conversion.json"
_KEYS = {"source", "classes", "broken"}


class ConversionNote:
    """The note of one folder, read when this is made; each change is written at once.

    By split: "source" and "classes" describe what its records are made from, "broken" has a line
    for each image that a record file is without, by the name of the file.
    """

    def __init__(self, folder: str) -> None:
        """Reads the note of a folder, if there is one.

        Raises:
          ValueError: the file is not a note.
        """
        self._path = os.path.join(folder, _FILE)
        self._splits: dict[str, dict[str, Any]] = {}
        try:
            with open(self._path, encoding="utf-8") as file:
                self._splits = _checked(json.load(file))
        except FileNotFoundError:
            pass
        except ValueError as error:
            raise ValueError(
                f"{self._path}: is not the note of a conversion ({error}); remove the file"
            ) from None

    def splits(self) -> list[str]:
        """Returns the names of the splits that it knows."""
        return list(self._splits)

    def keep(self, splits: Container[str]) -> None:
        """Forgets all other splits; the next change writes that."""
        self._splits = {split: noted for split, noted in self._splits.items() if split in splits}

    def refuse_other(self, split: str, source: str, class_names: Sequence[str]) -> None:
        """Raises ValueError if a split would be made otherwise than the records that exist.

        Args:
          split: name of the split.
          source: describes what it would be made from.
          class_names: names of the classes, which all splits share.
        """
        classes = _describe(class_names)
        for other, noted in self._splits.items():
            if noted["classes"] != classes:
                raise self._refusal(other, noted["classes"], classes)
        noted = self._splits.get(split)
        if noted and noted["source"] != source:
            raise self._refusal(split, noted["source"], source)

    def start(self, split: str, source: str, class_names: Sequence[str]) -> None:
        """Notes what a split is made from."""
        broken = self._splits.get(split, {}).get("broken", {})
        classes = _describe(class_names)
        self._splits[split] = {"source": source, "classes": classes, "broken": broken}
        self._write()

    def set_broken(self, split: str, shard: str, lines: Sequence[str]) -> None:
        """Notes the broken images that a record file is without, a line for each."""
        broken = self._splits[split]["broken"]
        if broken.get(shard, []) != lines:
            broken[shard] = list(lines)
            self._write()

    def broken(self) -> list[str]:
        """Returns the lines of all record files."""
        found = (split["broken"] for split in self._splits.values())
        return [line for shards in found for name in sorted(shards) for line in shards[name]]

    def _refusal(self, split: str, noted: str, now: str) -> ValueError:
        folder = os.path.dirname(self._path)
        return ValueError(
            f"{folder}: its {split} records were made from {noted}, not from {now}; "
            "name another folder, or replace them with --overwrite"
        )

    def _write(self) -> None:
        with files.replacing_text(self._path) as file:
            json.dump(self._splits, file, indent=1)


def _checked(content: Any) -> dict[str, dict[str, Any]]:
    splits = content.values() if isinstance(content, dict) else [content]
    if not all(isinstance(split, dict) and split.keys() == _KEYS for split in splits):
        raise ValueError(f"each split must have {', '.join(sorted(_KEYS))}")
    return content


def _describe(class_names: Sequence[str]) -> str:
    digest = hashlib.sha256("\n".join(class_names).encode())
    return f"{len(class_names)} classes ({digest.hexdigest()[:16]})"
