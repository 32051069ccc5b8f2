"""The prediction of a step's time, from its parts to its line."""

import numpy as np
import pytest
import tensorflow as tf

from inception.training import prediction
from inception.training.prediction import _StepTime
from terngrad.exchange.network_probe import NetworkSpeed
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


@pytest.mark.parametrize(("density", "least", "most"), [(0.1, 0.3, 0.35), (1.0, 0.0, 0.01)])
def test_the_share_of_bytes_is_that_of_the_codes_of_this_net(density, least, most):
    kernels = choose_kernels().kernels
    packing = prediction._Packing(1, kernels)
    assert packing.share == 1.0  # floats
    chosen = np.random.default_rng(0).random(32 * 2000) < density
    ones = np.packbits(chosen, bitorder="little").view(np.uint32)
    packing.sum_codes(bucket_of([tf.constant(np.stack([ones, 0 * ones], axis=1))], "a", 1))
    assert least <= packing.share <= most
