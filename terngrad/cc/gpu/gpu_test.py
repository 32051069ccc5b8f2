"""Checks the laws of the kernels for GPUs on the host (*_test.cc), and their sources."""

import os
import re

import pytest

from terngrad.ops.library import FLAGS, ROOT, sources
from terngrad.testing import native

FOLDER = os.path.join("terngrad", "cc", "gpu")
HOST = os.path.join(FOLDER, "testing", "host_entries.cc")
LAWS = native.law_sources("gpu")
BUILDS = {"users": FLAGS, "sanitized": native.sanitized("address,undefined")}
WARNINGS = (
    *(flag for flag in FLAGS if flag != "-w"),
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",  # those of GPUs
)


def text(name):
    """The text of a source of the folder."""
    with open(os.path.join(ROOT, FOLDER, name), encoding="utf-8") as file:
        return file.read()


@pytest.mark.slow
@pytest.mark.parametrize(
    "build", ["users", pytest.param("sanitized", marks=pytest.mark.exhaustive)]
)
def test_the_bits_are_those_of_the_cpu(build, tmp_path):
    laws = native.program(tmp_path, [*sources("lib", "*.cc"), HOST, *LAWS], BUILDS[build])
    hold = rf"{native.count_laws('gpu')} laws, \d{{7,}} numbers\n"
    assert re.fullmatch(hold, native.output([laws]))


@pytest.mark.slow
def test_sources_compile_without_warnings():
    for source in [*sources("gpu", "*.cc"), *LAWS]:
        done = native.run([native.compiler(), *WARNINGS, "-I.", "-fsyntax-only", source])
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_every_entry_point_has_a_row_and_a_description():
    entries = set(re.findall(r"terngrad_\w+", text("kernels.cu")))
    assert set(re.findall(r'"(terngrad_\w+)"', text("testing/host_entries.cc"))) == entries
    described = set(re.findall(r"terngrad_\w+", text("entries.h")))
    families = {"terngrad_encode_L", "terngrad_nearest_L", "terngrad_update_RULE"}
    assert described == entries | families
