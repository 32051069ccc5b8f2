"""A kind of flag that only benchmarks have."""

from inception.flags.table import NAMES, Kind


def some_of(*choices: str) -> Kind:
    """Names, each of which is one of the choices."""
    told = choices if len(choices) < 10 else (choices[0], "...", choices[-1])
    return Kind(NAMES.read, f"of {', '.join(told)}", lambda names: set(names) <= set(choices))
