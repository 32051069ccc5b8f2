"""Checks the laws of the mesh without TensorFlow (*_test.cc), also with sanitizers."""

import ctypes.util

import pytest

from terngrad.ops.library import FLAGS, sources
from terngrad.testing import native
from terngrad.testing.certificates import make_certificates

SOURCES = [
    *sources("lib", "*.cc"),
    *sources("net", "*.cc"),
    *native.law_sources("net"),
]
BUILDS = {
    "users": FLAGS,
    "memory": native.sanitized("address,undefined"),
    "threads": native.sanitized("thread"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(flags, id=name, marks=pytest.mark.exhaustive if name == "threads" else ())
        for name, flags in BUILDS.items()
    ],
)
def test_laws_hold_also_with_tls(flags, tmp_path):
    program = native.program(tmp_path, SOURCES, flags, link_flags=["-lpthread", "-ldl"])
    hold = f"mesh: {native.count_laws('net')} laws hold\n"
    assert native.output([program]) == hold
    tls = make_certificates(tmp_path, "authority", "all")
    openssl = ctypes.util.find_library("ssl") or pytest.skip("there is no OpenSSL")
    assert hold == native.output([program, tls.ca, tls.cert, tls.key, openssl])
