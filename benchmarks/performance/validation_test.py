"""Predictions are compared with measured exchanges."""

import json

import pytest

from benchmarks.performance import validation

BITS = 2 * 8e5  # two hosts send each other 2 bits for each of 800,000 values


def write(path, cells):
    path.write_text(json.dumps({"cells": cells}))
    return str(path)


def cell(net, rate, ms, exchange="ternary"):
    return {
        "gradients": net,
        "hosts": 2,
        "rate": rate,
        "engine": "collective",
        "exchange": exchange,
        "values": 800_000,
        "ms": ms,
    }


def test_the_share_is_taken_from_one_net_and_tried_on_others(tmp_path):
    wire = BITS / 0.955e9 * 1e3
    path = write(
        tmp_path / "a.json",
        [
            cell("lenet_slim", "unshaped", [10.0, 9.0, 11.0]),
            cell("lenet_slim", "1gbit", [wire + 4.0]),
            cell("alexnet", "unshaped", [20.0]),
            cell("alexnet", "1gbit", [wire + 10.0]),
            cell("alexnet", "100mbit", []),  # was left out of the measurement
            cell("alexnet", "1gbit", [1.0], "float16"),  # has no unshaped one
        ],
    )
    fitted, tested = validation.read_cells([path])
    assert (fitted.fitted, tested.fitted) == (True, False)
    assert fitted.wire_ms == pytest.approx(wire)
    share = validation.visible_share([fitted, tested])
    assert share == pytest.approx(0.4, abs=0.01)
    assert tested.predicted_ms(share) == pytest.approx(wire + 8.0, abs=0.3)
    assert tested.error(share) == pytest.approx(-2 / (wire + 10.0), abs=0.03)


def test_the_bytes_that_an_engine_sent_are_taken_from_the_measurement(tmp_path):
    sent = {"formula_busiest_bytes": 160_000.0, "engine": "sockets"}
    cells = [
        cell(net, rate, [9.0]) | sent
        for net in ("lenet_slim", "alexnet")
        for rate in ("unshaped", "1gbit")
    ]
    for found in validation.read_cells([write(tmp_path / "a.json", cells)]):
        assert found.wire_ms == pytest.approx(1.6 * 8e5 / 0.955e9 * 1e3)


@pytest.mark.parametrize("content", ["{", "{}", '{"cells": [{"ms": [1]}]}', "[]"])
def test_law_10_files_without_such_figures_are_named(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=r"a\.json: holds no figures of benchmarks"):
        validation.read_cells([str(tmp_path / "a.json")])


def test_law_10_files_without_cells_to_fit_or_to_test_are_refused(tmp_path):
    path = write(
        tmp_path / "a.json",
        [cell("alexnet", "unshaped", [20.0]), cell("alexnet", "1gbit", [30.0])],
    )
    with pytest.raises(ValueError, match="needs shaped and unshaped cells of lenet_slim"):
        validation.read_cells([path])
    with pytest.raises(ValueError, match="No such file"):
        validation.read_cells([str(tmp_path / "none.json")])
