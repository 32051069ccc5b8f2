"""The benchmark runs, and its figures are consistent."""

import numpy as np
import pytest

SIDES = ["hand-written"]
SIDES += [f"{name} x {nodes}" for nodes in (1, 2, 4) for name in ("float", "ternary")]


@pytest.mark.slow
def test_ratios_are_medians_over_the_rounds(run):
    figures = run("training_benchmark", "--nets=lenet_slim", "--rounds=2", "--slice_secs=0")
    assert figures["environment"]["deterministic"] is True
    (comparison,) = figures["comparisons"]
    times, ratios = comparison["times"]["wall"], comparison["ratios"]
    assert list(times) == SIDES
    assert all(len(values) == 2 and min(values) > 0 for values in times.values())
    speed = np.median(np.divide(times["hand-written"], times["float x 1"]))
    assert ratios["images/s, float x 1 to hand-written"] == pytest.approx(speed)
    cost = np.median(np.divide(times["ternary x 4"], times["float x 4"]))
    assert ratios["ms/step, ternary to float x 4"] == pytest.approx(cost)
    cpu = comparison["times"]["cpu"]
    cost = np.median(np.divide(cpu["ternary x 4"], cpu["float x 4"]))
    assert ratios["CPU time, ternary to float x 4"] == pytest.approx(cost)


def test_an_unknown_net_is_named(run):
    with pytest.raises(
        SystemExit, match="--nets=vgg: must be one or more of lenet_slim, cifar10_alexnet"
    ):
        run("training_benchmark", "--nets=vgg")
