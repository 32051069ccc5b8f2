"""What a space may be, and the error for one that cannot be read."""

import pytest
from absl import flags

from inception.flags.command_line import flags_of
from inception.sweeping import space
from inception.sweeping.space import Choices, Range


def read(text):
    return space.read(text, flags_of("inception.mnist_train"), "grid")


def test_lists_and_ranges_are_read_with_the_type_of_their_flag():
    found = read("grad_bits=1,32 clip_factor=0..4 initial_learning_rate=1e-4..0.5:log seed=1..9")
    assert found == {
        "grad_bits": Choices(("1", "32")),
        "clip_factor": Range(0.0, 4.0, log=False),
        "initial_learning_rate": Range(1e-4, 0.5, log=True),
        "seed": Range(1, 9, log=False),
    }
    assert isinstance(found["seed"].low, int)
    assert space.ranges(found) == ["clip_factor", "initial_learning_rate", "seed"]


def test_texts_with_dots_are_values():
    assert read("data_dir=../a,../b:c")["data_dir"] == Choices(("../a", "../b:c"))


def test_ranges_of_a_programs_own_flags_have_their_type():
    values = flags.FlagValues()
    flags.DEFINE_string("text", "", "", flag_values=values)
    flags.DEFINE_integer("whole", 1, "", flag_values=values)
    flags.DEFINE_float("real", 1.0, "", flag_values=values)
    assert space.read("text=../a,../b whole=1..3 real=1..3", values, "space") == {
        "text": Choices(("../a", "../b")),
        "whole": Range(1, 3, log=False),
        "real": Range(1.0, 3.0, log=False),
    }


def test_what_is_printed_of_a_space_reads_as_the_same_space():
    found = read("grad_bits=1,32 initial_learning_rate=0.001..0.5:log")
    assert read(" ".join(f"{name}={values}" for name, values in found.items())) == found


def test_the_last_name_of_a_grid_changes_fastest():
    points = list(space.combinations(read("grad_bits=1,32 --clip_factor=0,2.5")))
    assert [tuple(point.values()) for point in points] == [
        ("1", "0"),
        ("1", "2.5"),
        ("32", "0"),
        ("32", "2.5"),
    ]
    assert space.arguments(points[1]) == ["--grad_bits=1", "--clip_factor=2.5"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must name a flag and its values"),
        ("grad_bits", "'grad_bits' must be NAME=VALUE,VALUE or NAME=LOW..HIGH"),
        ("grad_bits=", "must be NAME=VALUE,VALUE"),
        ("grad_bits=1 grad_bits=32", "grad_bits appears twice"),
        ("grad_bits=1,1", "flag --grad_bits=1,1: a value appears twice"),
        ("no_flag=1", "the program has no flag --no_flag"),
        ("grad_bits=1,5", "flag --grad_bits=5: must be 32, 16, 8, 4, 3, 2 or 1"),
        ("clip_factor=-1..2", "flag --clip_factor=-1.0: must be a number >= 0"),
        ("clip_factor=2..1", "a range LOW..HIGH needs LOW < HIGH"),
        ("clip_factor=0..1:log", "a range LOW..HIGH:log needs 0 < LOW < HIGH"),
        ("clip_factor=0..1:exp", "a range is LOW..HIGH or LOW..HIGH:log"),
        ("clip_factor=a..b", "the ends of a range must be numbers"),
        ("seed=1..2.5", "the ends of a range must be whole numbers"),
        ("optimizer=adam..gd", "flag --optimizer=adam..gd: must be "),
    ],
)
def test_law_10_a_bad_space_is_reported(text, message):
    with pytest.raises(ValueError) as error:
        read(text)
    assert message in str(error.value)
