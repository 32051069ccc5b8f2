"""Codes of real gradients take few bits more than their entropy."""

from pathlib import Path

import pytest

from terngrad.ops import library
from terngrad.ops.packing import NativePacking

try:
    NativePacking()
except library.UnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)

_CIFAR10 = Path(__file__).parents[2] / "shared" / "data" / "cifar10"


def check(figures, sources):
    rows = figures["rows"]
    assert len({row["gradients"] for row in rows}) == sources
    for row in rows:
        assert row["bits"] <= row["planes"]
        assert row["bits"] <= row["entropy"] + 0.1, row
        assert min(row["pack GB/s"], row["unpack GB/s"]) > 0


@pytest.mark.slow
def test_codes_of_lenets_gradients_take_at_most_a_tenth_bit_more_than_their_entropy(run):
    options = ("--steps=0,20", "--samples=1000000", "--rounds=1")
    check(run("packing_benchmark", *options), 4)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not _CIFAR10.is_dir(), reason="needs CIFAR-10")
def test_codes_of_real_gradients_take_at_most_a_tenth_bit_more_than_their_entropy(run):
    options = ("--steps=0,20", "--samples=1000000", "--rounds=1", f"--cifar10_files={_CIFAR10}")
    check(run("packing_benchmark", *options), 6)
