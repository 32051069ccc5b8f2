"""The prediction of a step's time, from its parts to its line."""

import numpy as np
import pytest
import tensorflow as tf

from inception.training import prediction
from inception.training.prediction import _StepTime
from terngrad.exchange.connection import NetworkSpeed
from terngrad.testing.conformance import bucket_of
from terngrad.training.runtime import choose_kernels

NETWORK = NetworkSpeed(latency_secs=2e-4, bits_per_sec=1e9)


def test_a_part_of_computing_hides_the_network():
    assert _StepTime(computing=1.0, codec=0.1, network=0.0).seconds == pytest.approx(1.1)
    assert _StepTime(computing=1.0, codec=0.1, network=0.2).seconds == pytest.approx(1.1)
    assert _StepTime(computing=1.0, codec=0.1, network=2.0).seconds == pytest.approx(2.85)


def test_the_line_tells_the_ratio_and_its_parts():
    coded, plain = _StepTime(0.1, 0.01, 0.05), _StepTime(0.1, 0.0, 0.4)
    line = prediction._told("ternary", coded, plain, NETWORK)
    assert line == (
        "Prediction: ternary 3.5 x faster than float32 on this network (1,000 Mbit/s, 0.20 ms a "
        "message): 135 ms a step instead of 475; computing takes 100, the codec 10, the network "
        "50 instead of 400."
    )
    assert "ternary 3.5 x slower" in prediction._told("ternary", plain, coded, NETWORK)


def test_local_steps_wait_for_all_of_an_exchange_once():
    step = _StepTime(computing=1.0, codec=0.1, network=0.2)
    assert step.seconds == pytest.approx(1.1)
    assert step.with_local_steps(10).seconds == pytest.approx(1.03)
    assert step.with_local_steps(10).exchange_share == pytest.approx(0.03 / 1.03)


@pytest.mark.parametrize(
    ("mbits", "chosen", "recommended"),
    [
        (10_000, False, "--codec=float --local_steps=1, 104 ms"),
        (1_000, False, "--codec=ternary --local_steps=1, 105 ms"),
        (95, False, "--codec=ternary-feedback --local_steps=4, 110 ms"),
        (50, False, "--codec=ternary-feedback --local_steps=16, 105 ms"),
        (10, False, "--codec=ternary-feedback --local_steps=64, 105 ms"),
        (10, True, "--codec=ternary --local_steps=64, 105 ms"),
        (1, False, "--codec=ternary-feedback --local_steps=64, 153 ms"),
    ],
)
def test_the_recommendation_is_the_least_change_whose_exchange_is_short(mbits, chosen, recommended):
    sent = {"float32": 0.16, "ternary": 0.0031, "ternary-feedback": 0.0034}  # seconds at 1 Gbit/s
    codecs = {"float32": 0.004, "ternary": 0.005, "ternary-feedback": 0.005}
    times = {
        name: _StepTime(0.1, codecs[name], seconds * 1000 / mbits) for name, seconds in sent.items()
    }
    line = prediction._recommended(times, "ternary", chosen)
    assert line.startswith(f"Recommended here: {recommended} a step, the exchange ")
    assert ("though its exchange takes more than 10 %" in line) == (mbits == 1)
    assert "\n" not in line


@pytest.mark.parametrize(("density", "least", "most"), [(0.1, 0.3, 0.35), (1.0, 0.0, 0.01)])
def test_the_share_of_bytes_is_that_of_the_codes_of_this_net(density, least, most):
    kernels = choose_kernels().kernels
    packing = prediction._Packing(1, kernels)
    assert packing.share == 1.0  # floats
    chosen = np.random.default_rng(0).random(32 * 2000) < density
    ones = np.packbits(chosen, bitorder="little").view(np.uint32)
    packing.sum_codes(bucket_of([tf.constant(np.stack([ones, 0 * ones], axis=1))], "a", 1))
    assert least <= packing.share <= most
