"""Dataclasses from untrusted JSON."""

import dataclasses
from collections.abc import Mapping

import pytest

from terngrad.asynchronous import fields


@dataclasses.dataclass(frozen=True)
class Inner:
    """A field of the outer dataclass."""

    flag: bool = True
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Outer:
    """One field of every kind."""

    count: int
    share: float
    shapes: tuple[tuple[int, ...], ...]
    inner: Inner
    labels: Mapping[str, str]


VALUES = {
    "count": 1,
    "share": 0.5,
    "shapes": [[1, 2], []],
    "inner": {"names": ["a"]},
    "labels": {"a": "b"},
}
OUTER = Outer(1, 0.5, ((1, 2), ()), Inner(True, ("a",)), {"a": "b"})


def test_lists_become_tuples_and_fields_that_are_left_out_get_their_default():
    assert fields.read(Outer, VALUES) == OUTER
    assert fields.read(Outer, VALUES | {"share": 1}).share == 1
    fields.check(OUTER)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"count": True}, "count is of type bool; allowed is int"),
        ({"count": 1.0}, "count is of type float; allowed is int"),
        ({"share": "1"}, "share is of type str; allowed is float"),
        ({"shapes": "12"}, "shapes is of type str; allowed is a list"),
        ({"shapes": [[1], [2.0]]}, r"shapes\[1\]\[0\] is of type float; allowed is int"),
        ({"inner": []}, "inner is of type list; allowed is an object"),
        ({"inner": {"flag": 1}}, "inner.flag is of type int; allowed is bool"),
        ({"inner": {"other": 1}}, "inner has an unknown field 'other'"),
        ({"labels": {"a": 1}}, r"labels\['a'\] is of type int; allowed is str"),
        ({"other": 1}, "outer has an unknown field 'other'"),
    ],
)
def test_law_10_a_field_of_another_type_is_named(change, text):
    with pytest.raises(fields.FieldError, match=text):
        fields.read(Outer, VALUES | change)


def test_law_10_a_missing_field_is_named():
    with pytest.raises(fields.FieldError, match="outer has no field 'count'"):
        fields.read(Outer, {name: value for name, value in VALUES.items() if name != "count"})
    with pytest.raises(fields.FieldError, match="outer is of type list; allowed is an object"):
        fields.read(Outer, [])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"count": 1.0}, "count is of type float"),
        ({"shapes": ((1,), [2])}, r"shapes\[1\] is of type list; allowed is tuple"),
        ({"inner": Inner(flag=1)}, "inner.flag is of type int"),
        ({"inner": None}, "inner is of type NoneType; allowed is Inner"),
        ({"labels": {1: "b"}}, "a key of labels is of type int"),
    ],
)
def test_a_record_that_was_made_in_python_is_checked_alike(change, text):
    with pytest.raises(fields.FieldError, match=text):
        fields.check(dataclasses.replace(OUTER, **change))
