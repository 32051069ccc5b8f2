"""A warning points at the program, past all frames of libraries."""

import warnings

from terngrad.library.keras import program_warnings

_SOURCE = "def call(inner, *given):\n    return inner(*given)\n"


def _within(module):
    """Returns a function of a module, in a file of that name, which calls another."""
    names = {"__name__": module}
    exec(compile(_SOURCE, f"{module}.py", "exec"), names)
    return names["call"]


def test_a_warning_points_at_the_innermost_line_of_the_program():
    program, keras, own = map(_within, ("program", "keras.src.fit", "terngrad.library.fit"))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        program(keras, own, program_warnings.warn, "told")
        program(program_warnings.warn, "at once")
    assert [(each.filename, each.lineno, str(each.message)) for each in found] == [
        ("program.py", 2, "told"),
        ("program.py", 2, "at once"),
    ]
