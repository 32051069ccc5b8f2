"""libjpeg's warnings are found for the picture that they are about, and others pass."""

import concurrent.futures
import ctypes
import io
import platform

import numpy as np
import pytest
from PIL import Image

from slim.conversion import jpeg_warnings
from slim.testing import with_extraneous_bytes

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the C library's standard error stays as it is"
)


def _jpeg(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def _write(text):
    """Writes as C code does."""
    libc = ctypes.CDLL(None)
    stderr = ctypes.c_void_p.in_dll(libc, "stderr")
    assert libc.fputs(text, stderr) >= 0
    assert libc.fflush(stderr) == 0


def test_a_warning_is_found_and_not_printed(capfd):
    assert jpeg_warnings.find(_jpeg(0)) == ""
    found = jpeg_warnings.find(with_extraneous_bytes(_jpeg(0)))
    assert found.startswith("Corrupt JPEG data: ") and found.endswith("before marker 0xd9")
    assert jpeg_warnings.find(_jpeg(0)) == ""
    assert jpeg_warnings.find(b"no JPEG") is None
    assert jpeg_warnings.find(_jpeg(0)[:700]) is None
    printed = capfd.readouterr().err
    assert "extraneous" not in printed and "jpeg_mem.cc" not in printed


def test_each_of_many_threads_finds_the_warning_of_its_own_picture(capfd):
    clean = [_jpeg(seed) for seed in range(60)]
    given = [with_extraneous_bytes(c, 30 + i) if i % 7 == 0 else c for i, c in enumerate(clean)]
    alone = [jpeg_warnings.find(content) for content in given]
    assert [bool(found) for found in alone] == [i % 7 == 0 for i in range(60)]
    assert len(set(alone)) == 10
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(jpeg_warnings.find, given)) == alone
    assert capfd.readouterr().err == ""


def test_what_else_is_written_meanwhile_is_passed_on(monkeypatch, capfd):
    def decode(content):
        _write(b"a log\nCorrupt JPEG data: 2 extraneous bytes before marker 0xd9\nanother\n")
        return True

    _write(b"before\n")
    monkeypatch.setattr(jpeg_warnings, "_is_decodable", decode)
    assert jpeg_warnings.find(b"") == "Corrupt JPEG data: 2 extraneous bytes before marker 0xd9"
    _write(b"after\n")
    lines = capfd.readouterr().err.splitlines()
    assert lines == ["before", *["a log", "another"] * 2, "after"]
