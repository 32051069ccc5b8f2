"""Layout: which variables are coded, which stay float, and how they are grouped into buckets."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from terngrad import parts

# The counters of the random draws have 16 bits for each.
MAX_NODES = 1 << 16
MAX_VARIABLES = 1 << 16

# Nodes times the largest code. The native kernels hold sums in up to 18 bit planes.
MAX_SUM = 1 << 16
DEFAULT_BUCKET_ELEMENTS = 1 << 20
# Fields of a policy in earlier versions; what other values did is done by codecs now.
FORMER_FIELDS = {"scaler_sharing": True, "use_encoding": True}
# The codecs that `grad_bits` names too. A value has 2 L + 1 levels, L being the largest code.
BITS_OF_CODEC = {
    "float": 32,
    "half": 16,
    "ternary": 1,
    "5-level": 2,
    "7-level": 3,
    "15-level": 4,
    "255-level": 8,
}
MAX_CODES = {"ternary": 1, "5-level": 2, "7-level": 3, "15-level": 7, "255-level": 127}
# Codecs with a memory; they round to the nearest level.
FEEDBACK_CODES = {"ternary-feedback": 1, "5-level-feedback": 2}
# The codec that codes sums again on their way back, by the name of `Policy.sum_codec`.
EXACT = "exact"
SUM_CODECS = {"ternary": "ternary-feedback"}
SUM_CODEC_NAMES = (EXACT, *SUM_CODECS)
# The codec of the parameters that a ps sends an asynchronous worker, by the plan's `pull_codec`.
FLOAT = "float"
PULL_CODECS = {"ternary": "ternary-feedback"}
PULL_CODEC_NAMES = (FLOAT, *PULL_CODECS)
WHY_FEEDBACK_NEEDS_ALL = "what clipping cuts off would pile up in the codec's memory"
_CODEC_OF_BITS = {bits: name for name, bits in BITS_OF_CODEC.items()}
GRAD_BITS = (32, 16, 8, 4, 3, 2, 1)
DRAWS = ("independent", "antithetic")


class SuitedSettings(NamedTuple):
    """The settings of a policy that a codec takes where its user names the codec only.

    Attributes:
      clip_factor, scale_by, draws, size_to_binarize: see `Policy`.
    """

    clip_factor: float = 0.0
    scale_by: str = "variable"
    draws: str = DRAWS[0]
    size_to_binarize: int = 1


_SUITED = {name: SuitedSettings(clip_factor=2.5) for name in MAX_CODES}  # the paper's
# Where levels lie close, clipping seems to cost more precision than noise does: docs/results.md.
# Small variables are few of a large net's bytes, and much of what a small net's precision needs.
_SUITED["7-level"] = SuitedSettings(4.0, "channel", "antithetic", size_to_binarize=1024)
_SUITED["15-level"] = _SUITED["7-level"]._replace(clip_factor=5.0)
_SUITED["255-level"] = SuitedSettings()


def suited_settings(codec: str) -> SuitedSettings:
    """Returns the settings that suit a codec; those of a name that is not known have no effect."""
    return _SUITED.get(codec, SuitedSettings())


def codec_of(grad_bits: int) -> str:
    """Returns the name of the codec that a value of `grad_bits` stands for."""
    return _CODEC_OF_BITS[grad_bits]


@dataclasses.dataclass(frozen=True)
class Policy:
    """How gradients are exchanged.

    Attributes:
      grad_bits: 32 (float), 16 (half precision), or codes of 3 levels (1, the paper's), 5 (2),
        7 (3), 15 (4) or 255 (8).
      clip_factor: clip to this many standard deviations before encoding, or root mean squares where
        `scale_by` is not "variable"; 0 = no clipping.
      size_to_binarize: variables with fewer elements stay float.
      float_layers: names of layers whose variables stay float.
      codec: codec of the coded variables, one of `codecs.registry.CODECS`, or MODULE:CLASS; "" = by
        `grad_bits`.
      draws: "independent", or "antithetic": nodes 2 k and 2 k + 1 share draws, see draws.py.
      scale_by: what the values that share a scale have in common, see `parts.parts_of`.
      sum_codec: how means of codes travel back: "exact", as sums of codes, or coded again by
        "ternary", see codecs/sum_codec.py.
    """

    grad_bits: int = 32
    clip_factor: float = 0.0
    size_to_binarize: int = 1
    float_layers: tuple[str, ...] = ()
    codec: str = ""
    draws: str = "independent"
    scale_by: str = "variable"
    sum_codec: str = EXACT

    def __post_init__(self) -> None:
        if self.grad_bits not in GRAD_BITS:
            allowed = ", ".join(map(str, GRAD_BITS))
            raise ValueError(f"grad_bits is {self.grad_bits}; allowed are {allowed}.")
        if not 0.0 <= self.clip_factor < math.inf:
            raise ValueError(f"clip_factor is {self.clip_factor}; allowed are 0 and more.")
        if self.codec and self.grad_bits != 32:
            raise ValueError(f"codec is {self.codec} and grad_bits {self.grad_bits}: set only one.")
        if self.draws not in DRAWS:
            raise ValueError(f"draws is {self.draws!r}; allowed are {', '.join(DRAWS)}.")
        if not parts.is_known(self.scale_by):
            raise ValueError(f"scale_by is {self.scale_by!r}; allowed are {parts.ALLOWED}.")
        if self.sum_codec not in SUM_CODEC_NAMES:
            allowed = ", ".join(SUM_CODEC_NAMES)
            raise ValueError(f"sum_codec is {self.sum_codec!r}; allowed are {allowed}.")

    @property
    def is_coded(self) -> bool:
        """Whether large variables are sent as codes."""
        return bool(self.codec) or self.grad_bits < 16

    @property
    def codec_name(self) -> str:
        """Name of the codec of large variables."""
        return self.codec or codec_of(self.grad_bits)

    @property
    def float_type(self) -> np.dtype:
        """Type of the gradients that are sent as floats: float16 or float32."""
        return np.dtype(np.float16 if self.grad_bits == 16 else np.float32)


@dataclasses.dataclass(frozen=True)
class Segment:
    """One variable's place in a bucket.

    Attributes:
      variable: index of the variable in the layout; it selects the variable's random draws.
      name: the variable's name, "conv1/kernel".
      shape: the variable's shape.
      offset: index of its first element in the bucket.
      parts: which of its values share a scale.
    """

    variable: int
    name: str
    shape: tuple[int, ...]
    offset: int
    parts: parts.Parts

    @property
    def size(self) -> int:
        """Elements of the variable."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Coded variables that are packed and exchanged as one array."""

    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        """Elements of the bucket before padding."""
        return sum(segment.size for segment in self.segments)


@dataclasses.dataclass(frozen=True)
class Layout:
    """All trained variables, in the order of the gradients, and how each is exchanged.

    Attributes:
      names: names of all variables.
      shapes: shapes of all variables.
      policy: the policy the layout was made for.
      buckets: the coded variables that are exchanged. The last ones come first, as backpropagation
        yields them.
      float_buckets: indices of the variables that are exchanged as floats, one tuple per bucket,
        in the same order.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    policy: Policy
    buckets: tuple[Bucket, ...]
    float_buckets: tuple[tuple[int, ...], ...]

    @property
    def coded(self) -> tuple[int, ...]:
        """Indices of the coded variables, in bucket order."""
        return tuple(s.variable for bucket in self.buckets for s in bucket.segments)

    @property
    def scaled(self) -> tuple[int, ...]:
        """Index of the variable of each scale, in the order of the scales: bucket by bucket."""
        segments = (s for bucket in self.buckets for s in bucket.segments)
        return tuple(s.variable for s in segments for _ in range(s.parts.count))

    @property
    def size(self) -> int:
        """Elements of all variables."""
        return sum(math.prod(shape) for shape in self.shapes)

    def fingerprint(self) -> bytes:
        """Returns 16 bytes that differ between incompatible layouts."""
        buckets = [[s.variable for s in bucket.segments] for bucket in self.buckets]
        policy = dataclasses.asdict(self.policy)
        later = {name: policy.pop(name) for name in ("codec", "draws", "scale_by", "sum_codec")}
        default = dataclasses.asdict(Policy())
        policy |= FORMER_FIELDS  # with these and without defaults: as in earlier versions
        policy |= {name: value for name, value in later.items() if value != default[name]}
        content = [self.names, self.shapes, policy, buckets]
        content += [self.float_buckets] if self.float_buckets else []
        return hashlib.sha256(json.dumps(content).encode()).digest()[:16]


def make_layout(
    names: Sequence[str],
    shapes: Sequence[Sequence[int]],
    policy: Policy,
    bucket_elements: int = DEFAULT_BUCKET_ELEMENTS,
    chosen: Collection[int] | None = None,
) -> Layout:
    """Returns the layout of variables: which are coded, and the buckets of both kinds.

    Args:
      names: a unique name for each variable; the part before the last "/" names its layer.
      shapes: static shapes, in the same order.
      policy: decides which variables are coded.
      bucket_elements: a bucket takes variables until it holds this many elements.
      chosen: indices of the variables that are exchanged, such as a fragment's; None = all.

    Raises:
      ValueError: a name is repeated, a float layer is unknown, or there are too many variables.
    """
    if len(names) > MAX_VARIABLES:
        raise ValueError(f"there are {len(names)} variables; allowed are up to {MAX_VARIABLES}.")
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise ValueError(f"variable names must be unique; repeated: {', '.join(repeated)}.")
    layers = {_layer(name) for name in names}
    for layer in policy.float_layers:
        if layer not in layers:
            allowed = ", ".join(sorted(layers))
            raise ValueError(f"no variable is in layer {layer!r}; allowed are {allowed}.")
    fixed = tuple(tuple(int(d) for d in shape) for shape in shapes)
    exchanged = range(len(names)) if chosen is None else sorted(chosen)
    coded = [i for i in exchanged if _is_coded(names[i], fixed[i], policy)]
    floats = sorted({*exchanged} - {*coded})
    make = lambda i, offset: Segment(
        i, names[i], fixed[i], offset, parts.parts_of(fixed[i], policy.scale_by)
    )
    buckets = _fill_buckets(reversed(coded), make, bucket_elements)
    float_buckets = tuple(
        tuple(s.variable for s in bucket.segments)
        for bucket in _fill_buckets(reversed(floats), make, bucket_elements)
    )
    return Layout(tuple(names), fixed, policy, buckets, float_buckets)


def _is_coded(name: str, shape: tuple[int, ...], policy: Policy) -> bool:
    large_enough = math.prod(shape) >= policy.size_to_binarize
    return policy.is_coded and large_enough and _layer(name) not in policy.float_layers


def _fill_buckets(
    order: Iterable[int], make: Callable[[int, int], Segment], bucket_elements: int
) -> tuple[Bucket, ...]:
    """Returns buckets of variables; `make` returns the segment of a variable at an offset."""
    filled: list[list[Segment]] = []
    offset = bucket_elements
    for i in order:
        size = make(i, 0).size
        # A variable that overfills a half-full bucket starts a new one: neither delays the other.
        if offset >= bucket_elements or 2 * offset >= bucket_elements < offset + size:
            filled.append([])
            offset = 0
        filled[-1].append(make(i, offset))
        offset += size
    return tuple(Bucket(tuple(segments)) for segments in filled)


def _layer(name: str) -> str:
    return name.rpartition("/")[0]
