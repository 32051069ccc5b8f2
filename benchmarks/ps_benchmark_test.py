"""The parameter server benchmark runs on a small net."""

import pytest


@pytest.mark.slow
def test_cpu_time_and_time_of_a_step_are_reported(run):
    figures = run("ps_benchmark", "--net=lenet_slim", "--rounds=3")["figures"]
    assert figures["values"] == 3_274_634
    assert figures["ps_cpu_ns_by_value_and_worker"] > 0
    assert figures["ms_by_step"] > 0
