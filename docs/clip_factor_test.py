"""The tables of clip factors and levels in docs/extending.md hold what their derivations give."""

import re

import numpy as np
import pytest

from docs.markdown import REPO
from terngrad.codecs.feedback_codec import STEPS
from terngrad.layout import BITS_OF_CODEC, FEEDBACK_CODES, MAX_CODES

PAGE = (REPO / "docs" / "extending.md").read_text()
_ROW = re.compile(r"^\| (\d+) \| (\d+) \| (\d+) \| ([\d.]+(?: \| [\d.]+){5}) \|$", re.M)
_NODES = (1, 2, 4, 16)
_VALUES = np.linspace(0.0, 9.0, 90_001)
_DENSITY = 2.0 * np.exp(-(_VALUES**2) / 2) / np.sqrt(2.0 * np.pi)  # of the magnitude


def error(clip_factor, max_code, nodes):
    """Mean squared error of the mean of clipped, randomly rounded Gaussian values."""
    clipped = np.minimum(_VALUES, clip_factor)
    unit = clip_factor / max_code
    share = np.modf(clipped / unit)[0]
    squares = (_VALUES - clipped) ** 2 + share * (1.0 - share) * unit**2 / nodes
    return np.trapezoid(_DENSITY * squares, _VALUES)


def test_the_table_holds_the_best_clip_factor_of_each_number_of_levels():
    rows = _ROW.findall(PAGE)
    bits = [(str(BITS_OF_CODEC[name]), MAX_CODES[name]) for name in MAX_CODES]
    assert [row[:3] for row in rows] == [(b, str(2 * code + 1), str(code)) for b, code in bits]
    factors = np.arange(0.5, 5.0, 0.02)
    for (_, max_code), row in zip(bits, rows, strict=True):
        *best, least, at_the_papers = map(float, row[3].split(" | "))
        for nodes, stated in zip(_NODES, best, strict=True):
            errors = [error(factor, max_code, nodes) for factor in factors]
            assert stated == pytest.approx(factors[np.argmin(errors)], abs=0.021)
        assert least == pytest.approx(error(best[0], max_code, 1), abs=6e-4)
        assert at_the_papers == pytest.approx(error(2.5, max_code, 1), abs=6e-4)


def nearest(unit, max_code):
    """Magnitudes of the codes next to the values, in units."""
    return np.minimum(np.floor(_VALUES / unit + 0.5), max_code)


def error_of_rounding(unit, max_code):
    """Mean squared error of Gaussian values that are rounded to the nearest level."""
    return np.trapezoid(_DENSITY * (_VALUES - unit * nearest(unit, max_code)) ** 2, _VALUES)


def test_the_codecs_with_feedback_take_the_levels_of_the_least_error():
    rows = re.findall(r"^\| `([\w-]+)` \| (\d) \| (\d) \| ([\d. |]+) bits \|$", PAGE, re.M)
    codes = [(name, str(2 * code + 1), str(code)) for name, code in FEEDBACK_CODES.items()]
    assert [row[:3] for row in rows] == codes
    units = np.arange(0.3, 2.0, 0.001)
    for (_, max_code), row in zip(FEEDBACK_CODES.items(), rows, strict=True):
        best, least, zeros, bits = map(float, row[3].split(" | "))
        errors = [error_of_rounding(unit, max_code) for unit in units]
        assert best == STEPS[max_code] == pytest.approx(units[np.argmin(errors)], abs=0.0011)
        assert least == pytest.approx(min(errors), abs=6e-4)
        found = nearest(best, max_code)
        shares = [np.trapezoid(_DENSITY * (found == k), _VALUES) for k in range(max_code + 1)]
        assert zeros == pytest.approx(shares[0], abs=6e-4)
        signed = np.array([shares[0], *np.repeat(shares[1:], 2) / 2])
        assert bits == pytest.approx(-np.sum(signed * np.log2(signed)), abs=6e-3)
