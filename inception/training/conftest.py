"""How tests train in their own process."""

from collections.abc import Callable

import pytest

from inception import programs
from terngrad.training import runtime


@pytest.fixture
def train_here(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[..., str]:
    """Trains in this process, given what the test module's `arguments` takes; returns the output.

    The settings of the process are those that conftest.py at the top has made.
    """
    monkeypatch.setattr(runtime, "configure", lambda **_: None)
    monkeypatch.setattr(runtime, "towers", lambda n, on_cpu: [f"/CPU:{i}" for i in range(n)])

    def train(*args: object, **flags: object) -> str:
        programs.train("mnist", "", ["mnist_train", *request.module.arguments(*args, **flags)])
        return capsys.readouterr().out

    return train
