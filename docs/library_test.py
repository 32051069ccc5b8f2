"""The program of docs/library.md trains as the page says."""

import inspect
import re
import sys

import numpy as np
import pytest

import terngrad
from docs import markdown
from terngrad.testing.processes import finished, launch_environments

_PAGE = markdown.REPO / "docs" / "library.md"
_MAX_LINES = 5


def program() -> str:
    """The page's train.py."""
    (text,) = (b.text for b in markdown.blocks(_PAGE) if b.marker == "file: train.py")
    return text


def elastic_program() -> str:
    """The same with the page's loop for processes that come and go."""
    (loop,) = (b.text for b in markdown.blocks(_PAGE) if "group.run_steps" in b.text)
    return "\n".join([*program().rstrip().splitlines()[:-7], loop])


def asynchronous_program() -> str:
    """The same with the page's loop for workers that do not wait for each other."""
    texts = [b.text for b in markdown.blocks(_PAGE)]
    (join,) = (text for text in texts if "terngrad.join(asynchronous=" in text)
    (loop,) = (text for text in texts if "terngrad.AsynchronousTraining(" in text)
    before = program().partition("optimizer = ")[0]
    assert "group = terngrad.join()" in before
    return before.replace("group = terngrad.join()", join.strip()) + loop


def write(tmp_path, text: str) -> None:
    """Writes a program that trains on little data, which takes the place of the download."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 256)
    images = np.zeros((256, 28, 28), np.uint8)
    images[np.arange(256), labels * 2] = 255
    np.savez(tmp_path / "digits.npz", images=images, labels=labels)
    text = text.replace("/tmp/", f"{tmp_path}/")
    given = f"__import__('numpy').load({str(tmp_path / 'digits.npz')!r}).values(), None"
    text = text.replace("keras.datasets.mnist.load_data()", given)
    (tmp_path / "train.py").write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("is_elastic", [False, True])
def test_the_program_trains_alone_and_with_two_workers(tmp_path, is_elastic):
    text = elastic_program() if is_elastic else program()
    write(tmp_path, text.replace("steps=100", "steps=8"))
    for places in ([{}], launch_environments(2)):
        places = [{"PYTHONPATH": str(tmp_path), **place} for place in places]
        found = finished([[sys.executable, "-m", "train"]] * len(places), places)
        assert [status for _, status in found] == [0] * len(places), found
        lines = len(re.findall(r"^epoch [01]: loss", found[0][0], re.M))
        assert lines == (0 if is_elastic else 2), found
    assert (tmp_path / "mnist.keras").exists()


@pytest.mark.slow
def test_the_program_trains_without_waiting_for_other_workers(tmp_path):
    write(tmp_path, asynchronous_program().replace("max_steps=400", "max_steps=8"))
    places = [{"PYTHONPATH": str(tmp_path), **role} for role in launch_environments(2, servers=1)]
    found = finished([[sys.executable, "-m", "train"]] * 3, places)
    assert [status for _, status in found] == [0] * 3, found
    assert "ends at step 8: the run is finished." in found[2][0]
    assert (tmp_path / "mnist.keras").exists()
    assert list((tmp_path / "mnist_asynchronous" / "ps_0").glob("snapshot-8"))


def test_distribution_adds_few_lines():
    added = [line for line in program().splitlines() if "group" in line or "terngrad" in line]
    added += [line for line in program().splitlines() if "reducer(" in line]
    counted = [line for line in added if "is_chief" not in line]  # saving is the program's own
    assert len(counted) == _MAX_LINES, counted


def test_the_arrays_of_the_page_get_means():
    (text,) = (b.text for b in markdown.blocks(_PAGE) if "terngrad.numpy.stats" in b.text)
    found = {}
    try:
        exec(text, found)
    except terngrad.numpy.UnavailableError as error:
        pytest.skip(str(error))
    assert found["scale"].tolist() == [1.0]
    assert found["mean"].shape == (3,)
    assert set(found["mean"].tolist()) <= {-1.0, -0.5, 0.0, 0.5, 1.0}
    assert found["mean"][1] == 0.0  # -1 and 1 are sent as they are


def test_the_page_lists_the_public_names_and_arguments():
    text = _PAGE.read_text(encoding="utf-8")
    names = [name for name in terngrad.__all__ if not name.startswith("_")]
    assert [name for name in names if f"`terngrad.{name}" not in text] == []
    for function in (terngrad.join, terngrad.Reducer):
        for name in list(inspect.signature(function).parameters)[2:]:
            assert f"`{name}`" in text, f"{function.__name__} takes {name}"
