"""Reference trainings that several test modules share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from inception.testing.runs import LONGER, Parameters, Run, flags_of, parameters


@pytest.fixture(scope="session")
def undisturbed(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Parameters:
    """Parameters of an undisturbed training of 3 nodes in one process, after LONGER steps."""

    def fill(folder: Path) -> None:
        with Run(1, *flags_of(folder, net="mlp", batch_size=6, nodes=3, steps=LONGER)) as run:
            run.succeed()

    return parameters(made_once("undisturbed cluster", fill), LONGER)


@pytest.fixture(scope="session")
def four_nodes(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Parameters:
    """Parameters of a short training of LeNet with 4 nodes in one process."""

    def fill(folder: Path) -> None:
        with Run(1, *flags_of(folder, batch_size=8, nodes=4)) as run:
            run.succeed()

    return parameters(made_once("four nodes", fill))
