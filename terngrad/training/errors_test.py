"""The names of what is not finite."""

import numpy as np
import pytest

from terngrad.layout import Layout, Policy, make_layout
from terngrad.training.errors import broken_codes


def make():
    """Returns a layout with several scales a variable, and scales that are finite."""
    policy = Policy(grad_bits=1, scale_by="block:128", size_to_binarize=1)
    layout = make_layout(["a", "b"], [(256,), (384,)], policy)
    return layout, np.ones(len(layout.scaled), np.float32)


def test_each_variable_with_a_broken_scale_is_named_once():
    layout, scales = make()
    assert sorted(layout.scaled) == [0, 0, 1, 1, 1]
    of_b = np.flatnonzero(np.equal(layout.scaled, 1))
    scales[of_b[1:]] = np.inf, np.nan
    assert broken_codes(scales, layout) == ["b"]
    assert broken_codes(scales[of_b], layout, among=[1]) == ["b"]


def test_no_list_of_scales_is_made_where_all_are_finite(monkeypatch):
    layout, scales = make()
    monkeypatch.setattr(Layout, "scaled", property(lambda _: pytest.fail("a list is made")))
    assert broken_codes(scales, layout) == []
