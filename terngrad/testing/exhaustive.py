"""Parameters of tests of which CI takes only some."""

from collections.abc import Container, Iterable

import pytest


def sample(values: Iterable[object], in_ci: Container[object] = ()) -> list[object]:
    """Returns all values for `pytest.mark.parametrize`; those not in `in_ci` are exhaustive."""
    exhaustive = pytest.mark.exhaustive
    return [each if each in in_ci else pytest.param(each, marks=exhaustive) for each in values]
