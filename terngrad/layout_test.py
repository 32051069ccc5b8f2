"""Laws of the layout: each variable once, nothing moves without a new fingerprint."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terngrad.layout import Policy, make_layout

NAMES = ["conv1/kernel", "conv1/bias", "fc/kernel", "fc/bias", "logits/kernel", "logits/bias"]
SHAPES = [(5, 5, 1, 20), (20,), (100, 50), (50,), (50, 10), (10,)]


def layout_of(bucket_elements=1 << 22, **policy):
    return make_layout(NAMES, SHAPES, Policy(**{"grad_bits": 1} | policy), bucket_elements)


@given(st.integers(1, 10_000), st.integers(0, 6000), st.booleans())
def test_each_variable_is_coded_or_float_once_and_buckets_have_no_gaps(
    bucket_elements, size_to_binarize, float_logits
):
    layout = layout_of(
        bucket_elements,
        size_to_binarize=size_to_binarize,
        float_layers=("logits",) if float_logits else (),
    )
    assert sorted(layout.coded + sum(layout.float_buckets, ())) == list(range(len(NAMES)))
    for bucket in layout.buckets:
        offset = 0
        for segment in bucket.segments:
            assert segment.offset == offset
            assert segment.name == NAMES[segment.variable]
            offset += segment.size
        assert bucket.size == offset


def test_small_variables_stay_float():
    assert [NAMES[i] for i in sorted(sum(layout_of(size_to_binarize=51).float_buckets, ()))] == [
        "conv1/bias",
        "fc/bias",
        "logits/bias",
    ]


def test_the_last_layer_is_found_by_name_wherever_it_stands():
    order = [4, 0, 1, 5, 2, 3]
    layout = make_layout(
        [NAMES[i] for i in order],
        [SHAPES[i] for i in order],
        Policy(grad_bits=1, float_layers=("logits",)),
    )
    assert layout.float_buckets == ((3, 0),)


@pytest.mark.parametrize("grad_bits", [16, 32])
def test_without_ternary_gradients_everything_is_float(grad_bits):
    layout = make_layout(NAMES, SHAPES, Policy(grad_bits=grad_bits))
    assert layout.float_buckets == (tuple(reversed(range(6))),)
    assert not layout.buckets


@pytest.mark.parametrize(("grad_bits", "float_bytes"), [(32, 4), (16, 2), (1, 4)])
def test_what_stays_float_is_rounded_in_half_precision_only(grad_bits, float_bytes):
    assert Policy(grad_bits=grad_bits).float_type.itemsize == float_bytes


def test_the_last_variables_come_first_as_backpropagation_yields_them():
    assert layout_of().coded == (5, 4, 3, 2, 1, 0)


def test_a_large_variable_does_not_join_a_bucket_that_is_half_full():
    kernels = [(100,), (90,), (5,), (60,), (1,)]
    layout = make_layout([f"{i}/kernel" for i in range(5)], kernels, Policy(grad_bits=1), 100)
    found = [[s.variable for s in bucket.segments] for bucket in layout.buckets]
    # 1 + 60 are more than half, 5 still fits, 90 does not; 90 is less than the limit, 100 fills.
    assert found == [[4, 3, 2], [1], [0]]


def test_the_fingerprint_tells_layouts_apart():
    layouts = [
        layout_of(),
        layout_of(bucket_elements=100),
        layout_of(clip_factor=2.5),
        layout_of(size_to_binarize=51),
        layout_of(scale_by="channel"),
        layout_of(scale_by="block:128"),
        layout_of(grad_bits=32, codec="a:One"),
        layout_of(grad_bits=32, codec="a:Other"),
        layout_of(grad_bits=2),
        layout_of(draws="antithetic"),
        make_layout([n.upper() for n in NAMES], SHAPES, Policy(grad_bits=1)),
        make_layout(NAMES, [(25, 20), *SHAPES[1:]], Policy(grad_bits=1)),
    ]
    assert len({layout.fingerprint() for layout in layouts}) == len(layouts)
    assert layout_of().fingerprint() == layout_of().fingerprint()


def test_fingerprints_are_those_of_older_checkpoints():
    assert layout_of().fingerprint().hex() == "b31b45cf80104d9aca57ded5b6827abb"


def test_each_part_of_a_coded_variable_has_a_scale():
    layout = layout_of(scale_by="channel", float_layers=("fc",))
    assert layout.coded == (5, 4, 1, 0)
    assert layout.scaled == (5, *[4] * 10, 1, *[0] * 20)
    assert layout_of().scaled == layout_of().coded


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({"grad_bits": 5}, "grad_bits is 5; allowed are 32, 16, 8, 4, 3, 2, 1"),
        ({"draws": "other"}, "draws is 'other'; allowed are independent, antithetic"),
        ({"clip_factor": -1.0}, "clip_factor is -1.0; allowed are 0 and more"),
        ({"clip_factor": float("nan")}, "clip_factor is nan"),
        ({"scale_by": "row"}, "scale_by is 'row'; allowed are variable, channel, or block:N"),
        ({"codec": "a:C", "grad_bits": 1}, "codec is a:C and grad_bits 1: set only one"),
    ],
)
def test_a_policy_that_cannot_be_honoured_is_refused(policy, text):
    with pytest.raises(ValueError, match=text):
        dataclasses.replace(Policy(), **policy)


def test_unknown_float_layer_is_named():
    with pytest.raises(ValueError, match="no variable is in layer 'fc9'; allowed are conv1, fc"):
        layout_of(float_layers=("fc9",))


def test_repeated_names_are_named():
    with pytest.raises(ValueError, match="repeated: a/b"):
        make_layout(["a/b", "a/b"], [(1,), (1,)], Policy())
