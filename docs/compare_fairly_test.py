"""What docs/compare-fairly.md says of Adam is so, and its program trains in all four ways."""

import re
import shlex
import sys

import numpy as np
import pytest

import terngrad
from docs import markdown
from terngrad.testing.processes import finished

_PAGE = markdown.REPO / "docs" / "compare-fairly.md"


def text_of(marker):
    (text,) = (b.text for b in markdown.blocks(_PAGE) if b.marker == marker)
    return text


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [pytest.param(i, marks=[] if i == 0 else pytest.mark.exhaustive) for i in range(4)]
)
def test_the_program_trains_alone_and_with_python_m_terngrad_launch(tmp_path, line):
    """It trains on few digits, which take the place of the download."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 512)
    images = np.zeros((512, 28, 28), np.uint8)
    images[np.arange(512), labels * 2] = 255
    np.savez(tmp_path / "digits.npz", images=images, labels=labels)
    given = f"[list(__import__('numpy').load({str(tmp_path / 'digits.npz')!r}).values())] * 2"
    text = text_of("file: fair.py").replace("keras.datasets.mnist.load_data()", given)
    (tmp_path / "fair.py").write_text(text)
    lines = text_of("tested: docs/compare_fairly_test.py").splitlines()
    assert len(lines) == 4
    words = shlex.split(lines[line].replace("fair.py", str(tmp_path / "fair.py")))
    command = [sys.executable, *words[1:]]
    ((output, status),) = finished([command], {"PYTHONPATH": str(markdown.REPO)})
    assert status == 0, output
    assert len(re.findall(r"^(?:\[0\] )?accuracy ", output, re.MULTILINE)) == 1


def test_ternary_codes_of_a_constant_gradient_shorten_steps_of_adam_not_of_momentum():
    share, steps, values = 0.25, 4000, 512
    gradient = np.full(values, share, np.float32)  # the scale is 1
    m, v, adam, momentum = (np.zeros(values) for _ in range(4))
    for step in range(steps):
        try:
            codes = terngrad.numpy.encode([gradient], [1.0], seed=1, step=step, node=0)
        except terngrad.numpy.UnavailableError as error:
            pytest.skip(str(error))
        (g,) = terngrad.numpy.decode(codes, [1.0], nodes=1, shapes=[(values,)])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        t = step + 1
        adam += m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-7)
        momentum += g
    assert adam.mean() / steps == pytest.approx(share**0.5, rel=0.03)  # floats: 1
    assert momentum.mean() / steps == pytest.approx(share, rel=0.01)  # floats: share
