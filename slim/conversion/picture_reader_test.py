"""Laws of reading pictures: an RGB JPEG stays as it is, and each other kind becomes one."""

import io
import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from slim.conversion import picture_reader
from slim.conversion.options import Form
from slim.testing import with_extraneous_bytes

_SIZE = (40, 24)  # width, height
_RED, _WHITE = (200, 30, 40), (255, 255, 255)


def _image(mode="RGB", colour=_RED):
    return Image.new("RGB", _SIZE, colour).convert(mode)


def _encode(image, kind="JPEG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _exif(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def _gradient():
    """A picture without symmetry: red grows to the right, green downwards."""
    across, down = np.meshgrid(np.linspace(0, 255, _SIZE[0]), np.linspace(0, 255, _SIZE[1]))
    return Image.fromarray(np.stack([across, down, 0 * across], -1).astype(np.uint8))


def _decode(stored):
    """Decodes as the training does, and checks that the stored facts are true."""
    image = tf.io.decode_jpeg(stored.encoded).numpy()
    assert stored.format == "jpeg" and image.shape == (stored.height, stored.width, 3)
    return image.astype(int)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_an_rgb_jpeg_stays_as_it_is(options):
    content = _encode(_image(), quality=80, **options)
    stored = picture_reader.read(content)
    assert stored.encoded == content
    assert (stored.height, stored.width) == (24, 40)


def _wide(mode):
    """16 bits whose high byte is 100 and whose low byte is large."""
    return Image.fromarray(np.full(_SIZE[::-1], 100 * 256 + 250, mode))


def _with_palette_transparency():
    image = Image.new("P", _SIZE, 1)
    image.putpalette([*_RED, *_RED])
    image.info["transparency"] = 1
    return image


def _animation():
    first, second = _image(), _image(colour=_WHITE)
    return _encode(first, "GIF", save_all=True, append_images=[second])


def _with_transparent_grey():
    return _encode(Image.new("LA", _SIZE, (0, 0)), "PNG")


def _with_12_bits():
    """A TIFF whose rows are read as 12 bits a pixel: each 3 bytes are two pixels of 0x640."""
    content = _encode(Image.fromarray(np.zeros(_SIZE[::-1], np.uint16)), "TIFF")
    (bits_per_sample,) = re.findall(rb"\x02\x01\x03\x00\x01\x00\x00\x00\x10\x00", content)
    content = content.replace(bits_per_sample, bits_per_sample[:-2] + b"\x0c\x00")
    pixels = b"\x64\x06\x40" * (_SIZE[0] * _SIZE[1] // 2)
    return content[: -2 * _SIZE[0] * _SIZE[1]] + pixels.ljust(2 * _SIZE[0] * _SIZE[1], b"\0")


def _negative(tiff):
    """The same pixels, of which the largest is black."""
    (black_is_zero,) = re.findall(rb"\x06\x01\x03\x00\x01\x00\x00\x00\x01\x00", tiff)
    return tiff.replace(black_is_zero, black_is_zero[:-2] + b"\x00\x00")


_GREY = (82, 82, 82)  # of _RED

_KINDS = {
    "grey JPEG": (_encode(_image("L")), _GREY),
    "CMYK JPEG": (_encode(_image("CMYK")), _RED),
    "PNG": (_encode(_image(), "PNG"), _RED),
    "palette PNG": (_encode(_image().quantize(), "PNG"), _RED),
    "black and white PNG": (_encode(_image("1", _WHITE), "PNG"), _WHITE),
    "transparent PNG": (_encode(Image.new("RGBA", _SIZE, (*_RED, 0)), "PNG"), _WHITE),
    "opaque PNG with alpha": (_encode(Image.new("RGBA", _SIZE, (*_RED, 255)), "PNG"), _RED),
    "transparent grey PNG": (_with_transparent_grey(), _WHITE),
    "transparent palette PNG": (_encode(_with_palette_transparency(), "PNG"), _WHITE),
    "16-bit PNG": (_encode(_wide(np.uint16), "PNG"), (100, 100, 100)),
    "16-bit TIFF": (_encode(_wide(np.uint16), "TIFF"), (100, 100, 100)),
    "negative 8-bit TIFF": (_negative(_encode(_image("L"), "TIFF")), (173, 173, 173)),
    "negative 16-bit TIFF": (_negative(_encode(_wide(np.uint16), "TIFF")), (155, 155, 155)),
    "12-bit TIFF": (_with_12_bits(), (100, 100, 100)),
    "BMP": (_encode(_image(), "BMP"), _RED),
    "GIF": (_encode(_image(), "GIF"), _RED),
    "animated GIF": (_animation(), _RED),
    "lossless WebP": (_encode(_image(), "WEBP", lossless=True), _RED),
}


@pytest.mark.parametrize("kind", _KINDS)
def test_another_kind_becomes_an_rgb_jpeg_of_the_same_colour(kind):
    content, colour = _KINDS[kind]
    stored = picture_reader.read(content)
    assert stored.encoded != content
    image = _decode(stored)
    assert image.shape == (24, 40, 3)
    assert np.abs(image - colour).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_upright_as_exif_says(orientation):
    upright = np.asarray(_gradient()).astype(int)
    turned = {  # what a camera stores so that `orientation` makes it upright again
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: np.rot90(upright, -1),
    }[orientation]
    stored_by_camera = Image.fromarray(turned.astype(np.uint8))
    content = _encode(stored_by_camera, quality=95, subsampling=0, exif=_exif(orientation))
    image = _decode(picture_reader.read(content))
    assert image.shape == upright.shape and np.abs(image - upright).mean() < 3
    kept = picture_reader.read(content, is_upright=False)
    assert kept.encoded == content and (kept.height, kept.width) == turned.shape[:2]


@pytest.mark.parametrize("orientation", [0, 9, 255])
def test_an_orientation_that_exif_does_not_know_turns_nothing(orientation):
    content = _encode(_gradient(), exif=_exif(orientation))
    assert picture_reader.read(content).encoded == content


def test_detail_survives_the_change_of_format():
    pixels = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
    image = _decode(picture_reader.read(_encode(Image.fromarray(pixels), "PNG")))
    assert np.abs(image - pixels).mean() < 6


def test_raw_pixels_are_the_picture():
    pixels = np.asarray(_gradient())
    stored = picture_reader.read(_encode(_gradient(), "PNG"), Form(raw_pixel=True))
    assert stored[1:] == ("RAW", 24, 40, "")
    np.testing.assert_array_equal(
        np.frombuffer(stored.encoded, np.uint8).reshape(24, 40, 3), pixels
    )


def test_raw_pixels_are_resized_to_a_square_as_means_of_what_they_cover():
    content = _encode(_gradient(), "PNG")
    stored = picture_reader.read(content, Form(raw_pixel=True, resize_dimen=8))
    assert stored[1:] == ("RAW", 8, 8, "")
    small = np.frombuffer(stored.encoded, np.uint8).reshape(8, 8, 3).astype(int)
    means = np.asarray(_gradient()).reshape(8, 3, 8, 5, 3).mean((1, 3))
    inner = (slice(1, -1), slice(1, -1))  # at the rim less is covered
    assert np.abs(small - means)[inner].max() <= 2


_JPEG = _encode(_gradient())
_PNG = _encode(_gradient(), "PNG")


def _without_size(content, marker, field):
    at = content.index(marker) + field
    return content[:at] + bytes(4) + content[at + 4 :]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty file"),
        (b"hello", "no picture of a known format; allowed are JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no picture of a known format"),
        (_JPEG[:-40], "truncated"),
        (_JPEG[:-2], "truncated"),
        (_JPEG[:100], ""),
        (_PNG[: len(_PNG) // 2], ""),
        (_without_size(_JPEG, b"\xff\xc0", 5), ""),
        (_without_size(_PNG, b"IHDR", 4), ""),
        (_encode(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"), "floating-point"),
        *(
            (_encode(Image.fromarray(np.full((4, 4), value, np.int32)), "TIFF"), "32-bit integers")
            for value in (1 << 20, 200, -200)
        ),
    ],
)
@pytest.mark.parametrize("raw_pixel", [False, True])
def test_a_broken_picture_is_refused_with_a_reason(content, message, raw_pixel):
    with pytest.raises(ValueError, match=message or ".") as error:
        picture_reader.read(content, Form(raw_pixel=raw_pixel))
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@settings(max_examples=60)
@given(st.sampled_from(sorted(_KINDS)), st.data())
def test_damage_is_refused_or_leaves_a_picture_that_training_can_decode(kind, data):
    content = bytearray(_KINDS[kind][0])
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, len(content))) :]
    try:
        stored = picture_reader.read(bytes(content))
    except ValueError as error:
        assert str(error) and "\n" not in str(error)
    else:
        _decode(stored)


def test_a_picture_larger_than_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match="exceeds limit of 200 pixels"):
        picture_reader.read(_JPEG)


def test_a_jpeg_that_only_pillow_decodes_is_encoded_anew(monkeypatch):
    monkeypatch.setattr(picture_reader.jpeg_warnings, "find", lambda content: None)
    stored = picture_reader.read(_JPEG)
    assert stored.encoded != _JPEG
    assert np.abs(_decode(stored) - np.asarray(_gradient())).mean() < 6


def test_a_jpeg_with_a_warning_is_encoded_anew_so_that_training_does_not_warn(capfd):
    content = with_extraneous_bytes(_JPEG)
    stored = picture_reader.read(content)
    assert "extraneous bytes before marker 0xd9" in stored.warning
    assert stored.encoded != content
    assert np.abs(_decode(stored) - np.asarray(_gradient())).mean() < 6
    assert capfd.readouterr().err == ""
    assert picture_reader.read(_JPEG).warning == ""
