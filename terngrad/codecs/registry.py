"""The codecs that have short names. TensorFlow is not needed to look one up."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from collections.abc import Mapping

from terngrad.layout import BITS_OF_CODEC

# By name: MODULE:CLASS.
CODECS: Mapping[str, str] = {
    "ternary": "terngrad.codecs.ternary_codec:TernaryCodec",
    "5-level": "terngrad.codecs.ternary_codec:Codec5Level",
    "7-level": "terngrad.codecs.ternary_codec:Codec7Level",
    "15-level": "terngrad.codecs.ternary_codec:Codec15Level",
    "255-level": "terngrad.codecs.ternary_codec:Codec255Level",
    "ternary-feedback": "terngrad.codecs.feedback_codec:TernaryFeedbackCodec",
    "5-level-feedback": "terngrad.codecs.feedback_codec:FiveLevelFeedbackCodec",
}
CODEC_NAMES = tuple(dict.fromkeys([*BITS_OF_CODEC, *CODECS]))
ALLOWED = f"allowed are {', '.join(CODEC_NAMES)}, and MODULE:CLASS for a class of your own"


def why_unknown(name: str) -> str:
    """Returns why there is no codec of a name, as far as this is known without imports; else ""."""
    if name in CODECS or name in BITS_OF_CODEC:
        return ""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        return f"there is no such codec; {ALLOWED}"
    return "" if _exists(module) else f"there is no module {module}; {ALLOWED}"


def _exists(module: str) -> bool:
    """Returns whether there is a module; imports neither it nor the packages around it."""
    whole, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(whole) if whole else None
    except ValueError:  # such as __main__, which has no file
        return True
    for part in parts:
        whole = f"{whole}.{part}"
        places = spec.submodule_search_locations if spec else None
        spec = importlib.machinery.PathFinder.find_spec(whole, places) if places else None
    return spec is not None
