"""The settings of a reducer: which are allowed, and the policy of coding that they make."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

from terngrad import parts
from terngrad.codecs.registry import CODECS
from terngrad.layout import (
    BITS_OF_CODEC,
    DRAWS,
    EXACT,
    FEEDBACK_CODES,
    MAX_CODES,
    SUM_CODEC_NAMES,
    WHY_FEEDBACK_NEEDS_ALL,
    Policy,
    suited_settings,
)
from terngrad.library.group import Group

_BITS = {name: BITS_OF_CODEC[name] for name in MAX_CODES} | {"float32": 32, "float16": 16}
_FLOATS = ("float32", "float16")
DEFAULT_GRADIENTS = "7-level"


def check_group(name: str, group: Any) -> None:
    """Raises TypeError if what something of this name was given is no group."""
    if not isinstance(group, Group):
        kind = type(group).__name__
        raise TypeError(f"{name}: group is a {kind}; allowed is what terngrad.join returns")


def with_suited(gradients: str | type, **settings: Any) -> dict[str, Any]:
    """Returns settings of a reducer, where those that are None have the value that suits a codec.

    Args:
      gradients: see `Reducer`.
      settings: further arguments of `Reducer`; may have None for `clip_factor`, `scale_by`,
        `draws` and `size_to_binarize`.
    """
    suited = suited_settings(gradients if isinstance(gradients, str) else "")
    left = {name: value for name, value in suited._asdict().items() if settings[name] is None}
    return {"gradients": gradients, **settings, **left}


def check_settings(
    *,
    gradients: str | type,
    clip_factor: float,
    scale_by: str,
    size_to_binarize: int,
    float_layers: Sequence[str],
    seed: int,
    nodes: int,
    bucket_elements: int,
    draws: str,
    sum_codec: str = EXACT,
    memory_decay: float = 1.0,
) -> None:
    """Checks what needs no variables; for the arguments see `Reducer`.

    Raises:
      TypeError: names the argument that has another type.
      ValueError: names the argument that is wrong.
    """
    names = dict.fromkeys([*_BITS, *CODECS])
    allowed = f"{', '.join(names)}, and a codec of your own, as class or MODULE:CLASS"
    if not isinstance(gradients, (str, type)):
        raise TypeError(f"gradients is {gradients!r}; allowed are {allowed}")
    if isinstance(gradients, str) and gradients not in names and ":" not in gradients:
        raise ValueError(f"gradients is {gradients!r}; allowed are {allowed}")
    if draws not in DRAWS:
        raise ValueError(f"draws is {draws!r}; allowed are {', '.join(DRAWS)}")
    if sum_codec not in SUM_CODEC_NAMES:
        raise ValueError(f"sum_codec is {sum_codec!r}; allowed are {', '.join(SUM_CODEC_NAMES)}")
    if sum_codec != EXACT and gradients in _FLOATS:
        raise ValueError(
            f"sum_codec is {sum_codec}; allowed is {EXACT} with gradients as {gradients}, which "
            "have no codes"
        )
    if isinstance(float_layers, str) or not isinstance(float_layers, Iterable):
        raise TypeError(f"float_layers is {float_layers!r}; allowed is a list of names")
    if not isinstance(clip_factor, numbers.Real):
        raise TypeError(f"clip_factor is {clip_factor!r}; allowed are numbers")
    if not 0 <= clip_factor < math.inf:
        raise ValueError(f"clip_factor is {clip_factor}; allowed are finite numbers from 0 on")
    if clip_factor and gradients in FEEDBACK_CODES:
        raise ValueError(
            f"clip_factor is {clip_factor}; allowed is 0 with {gradients}: {WHY_FEEDBACK_NEEDS_ALL}"
        )
    if not isinstance(memory_decay, numbers.Real):
        raise TypeError(f"memory_decay is {memory_decay!r}; allowed are numbers from 0 to 1")
    if not 0 <= memory_decay <= 1:
        raise ValueError(f"memory_decay is {memory_decay}; allowed are numbers from 0 to 1")
    if not isinstance(scale_by, str):
        raise TypeError(f"scale_by is {scale_by!r}; allowed are {parts.ALLOWED}")
    if not parts.is_known(scale_by):
        raise ValueError(f"scale_by is {scale_by!r}; allowed are {parts.ALLOWED}")
    counts = {"size_to_binarize": size_to_binarize, "seed": seed, "nodes": nodes}
    counts["bucket_elements"] = bucket_elements
    for name, value in counts.items():
        if not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} is {value!r}; allowed are integers")
    lowest = {"size_to_binarize": 0, "nodes": 1, "bucket_elements": 1}
    for name, low in lowest.items():
        if counts[name] < low:
            raise ValueError(f"{name} is {counts[name]}; allowed are {low} and more")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed is {seed}; allowed are 0 to 2^64 - 1")


def policy_of(
    gradients: str | type,
    *,
    clip_factor: float,
    size_to_binarize: int,
    float_layers: Sequence[str],
    **settings: Any,
) -> Policy:
    """Returns how gradients are coded; for these see `Reducer`, for the others `Policy`.

    NumPy's numbers become Python's, as processes compare them.
    """
    codec = name_of_codec(gradients)
    named = "" if codec in _BITS else codec
    bits = _BITS.get(codec, 32)
    return Policy(
        grad_bits=bits,
        codec=named,
        clip_factor=float(clip_factor),
        size_to_binarize=int(size_to_binarize),
        float_layers=tuple(float_layers),
        **settings,
    )


def name_of_codec(gradients: str | type) -> str:
    """Returns the name of gradients, of a class as MODULE:CLASS."""
    if isinstance(gradients, str):
        return gradients
    return f"{gradients.__module__}:{gradients.__qualname__}"
