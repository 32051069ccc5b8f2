"""Settings from environment variables."""

import pytest

from terngrad.training import runtime


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch):
    for name in ("TERNGRAD_KERNELS", "TERNGRAD_SIMD"):
        monkeypatch.delenv(name, raising=False)


def test_kernels_are_chosen_by_the_environment(monkeypatch):
    monkeypatch.setenv("TERNGRAD_KERNELS", "reference")
    assert runtime.kernels().kernels.family == "reference"
    assert not runtime.kernels().why_reference


@pytest.mark.parametrize("name", ["TERNGRAD_KERNELS", "TERNGRAD_SIMD"])
def test_law_10_a_value_of_the_environment_that_cannot_be_is_named(monkeypatch, name):
    monkeypatch.setenv(name, "mmx")
    with pytest.raises(ValueError, match=f"{name} is 'mmx'; allowed are "):
        runtime.kernels()
