"""The compiled service.proto: which module holds it, and whether it fits the text."""

from __future__ import annotations

import hashlib
import importlib
import os

FOLDER = os.path.dirname(os.path.abspath(__file__))
PROTO = os.path.join(FOLDER, "service.proto")
MODULE = "service_descriptor"  # generated: the set-up writes it, and no repository holds it


class NotCompiledError(ValueError):
    """There is no compiled service.proto; the message says why, and what to type."""


def digest() -> str:
    """Names the text of service.proto that is there."""
    with open(PROTO, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def descriptor() -> bytes:
    """Returns what the compiler made of service.proto: a serialized FileDescriptorSet.

    It loads neither protobuf nor TensorFlow, so that a program can ask before it loads them.

    Raises:
      NotCompiledError: the module is missing, or holds another text than that of service.proto.
    """
    try:
        module = importlib.import_module(f"terngrad.service.{MODULE}")
    except ModuleNotFoundError:
        why = "is missing"
    else:
        if digest() == module.DIGEST:
            return module.DESCRIPTOR
        why = "was made from another service.proto"
    path = os.path.join(FOLDER, f"{MODULE}.py")
    raise NotCompiledError(f"{path} {why}: run `python -m terngrad.service.build`")
