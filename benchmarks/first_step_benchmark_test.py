"""The benchmark of the time until the first step."""

import pytest

from benchmarks.first_step_benchmark import _Options


@pytest.mark.parametrize("nodes", ["0", "two"])
def test_law_10_wrong_flags_are_told(nodes):
    with pytest.raises(ValueError, match=f"flag --nodes={nodes}: must be integers >= 1"):
        _Options(nodes=(nodes,))


@pytest.mark.slow
def test_fit_and_numbers_of_nodes_take_turns(run, capfd):
    figures = run(
        *("first_step_benchmark", "--dataset=mnist", "--nets=lenet_slim"),
        *("--nodes=1,2", "--rounds=1"),
    )
    (net,) = figures["nets"]
    assert list(net["sides"]) == ["Keras' fit", "1 node", "2 nodes"]
    assert all(cell["cpu_s"] > 0 for cells in net["sides"].values() for cell in cells)
    assert "| 2 nodes " in capfd.readouterr().out
