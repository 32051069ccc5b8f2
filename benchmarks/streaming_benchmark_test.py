"""The benchmark runs, and its figures are consistent."""

import pytest


@pytest.mark.slow
def test_each_case_is_read_by_a_process_of_its_own(run):
    sizes = ("--shards=4", "--images_per_shard=32", "--shuffle_pool=8", "--batches=2")
    figures = run("streaming_benchmark", *sizes, "--rounds=1")
    small, large, resumed = (found for (found,) in figures["readings"].values())
    assert [found["images"] for found in (small, large, resumed)] == [32, 128, 128]
    assert [found["start_step"] for found in (small, large, resumed)] == [0, 0, 2]
    for found in (small, large, resumed):
        assert found["peak_mb"] >= found["before_mb"] > 0 < found["first_batch_secs"]
