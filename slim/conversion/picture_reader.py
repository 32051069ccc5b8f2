"""Reads one picture of any common kind, for the records: an RGB JPEG or RGB pixels."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from slim.conversion import jpeg_warnings
from slim.conversion.options import JPEG, Form

# A closed list: some of Pillow's other formats start programs.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")
_JPEG_FORMATS = ("JPEG", "MPO")  # a camera's MPO is a JPEG followed by more pictures
_QUALITY = 95
_ORIENTATION = 0x0112  # key in EXIF
_TURNED = range(2, 9)  # values of it; others mean nothing
_WIDE_MODES = ("I;16", "I;16B", "I;16L", "I;16N")
_OF_UNKNOWN_RANGE = {"F": "floating-point numbers", "I": "signed or 32-bit integers"}
_BITS, _PHOTOMETRIC = 258, 262  # keys in a TIFF
_WHITE_IS_ZERO = 0


class Stored(NamedTuple):
    """A picture as it is stored: RGB, so with 3 channels."""

    encoded: bytes
    format: str  # "jpeg" or "RAW"
    height: int
    width: int
    warning: str = ""  # of libjpeg about the file, which is therefore encoded anew


def read(content: bytes, form: Form = JPEG, *, is_upright: bool = True) -> Stored:
    """Turns a picture file into what is stored.

    An RGB JPEG that TensorFlow decodes without a warning stays as it is, byte for byte. Other kinds
    become an RGB JPEG of quality 95 with full colour resolution: grey, CMYK, palette, 12-bit and
    16-bit pictures (of which the high 8 bits are kept), other formats whatever the file's name ends
    with, and pictures that EXIF turns. Transparent parts become white. Of an animation the first
    picture is taken.

    Args:
      content: a JPEG, PNG, BMP, GIF, WebP or TIFF file.
      form: how it is stored. Raw pixels are resized bilinearly; where they become fewer, each is
        the weighted mean of all pixels that it covers.
      is_upright: whether to turn the picture as its EXIF orientation says.

    Raises:
      ValueError: it is none of these, is damaged, or is larger than Pillow's limit of 179 million
        pixels; says why.
    """
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            is_turned = is_upright and image.getexif().get(_ORIENTATION) in _TURNED
            is_rgb_jpeg = image.format in _JPEG_FORMATS and image.mode == "RGB" and not is_turned
            warning = None
            if is_rgb_jpeg and not form.raw_pixel:
                warning = jpeg_warnings.find(content)
                if warning == "":
                    return Stored(content, "jpeg", image.height, image.width)
            tags = getattr(image, "tag_v2", {})
            rgb = _to_rgb(ImageOps.exif_transpose(image) if is_turned else image, tags)
    except Image.UnidentifiedImageError:
        kind = "an empty file" if not content else "no picture of a known format"
        raise ValueError(f"{kind}; allowed are {', '.join(_FORMATS)}") from None
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None
    return _store(rgb, form)._replace(warning=warning or "")


def _to_rgb(image: Image.Image, tags: Mapping[int, Any]) -> Image.Image:
    if kind := _OF_UNKNOWN_RANGE.get(image.mode):
        raise ValueError(
            f"pixels are {kind}, whose range is unknown; allowed are 8, 12 and 16 bits"
        )
    if image.mode in _WIDE_MODES:
        high = (np.asarray(image) >> (tags.get(_BITS, (16,))[0] - 8)).astype(np.uint8)
        # Of 8 bits Pillow does it.
        is_negative = tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
        image = Image.fromarray(255 - high if is_negative else high)
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), coloured)
    return image.convert("RGB")


def _store(rgb: Image.Image, form: Form) -> Stored:
    if form.raw_pixel:
        if form.resize_dimen:
            size = (form.resize_dimen, form.resize_dimen)
            rgb = rgb.resize(size, Image.Resampling.BILINEAR)
        return Stored(rgb.tobytes(), "RAW", rgb.height, rgb.width)
    buffer = io.BytesIO()
    rgb.save(buffer, "JPEG", quality=_QUALITY, subsampling=0)
    return Stored(buffer.getvalue(), "jpeg", rgb.height, rgb.width)
