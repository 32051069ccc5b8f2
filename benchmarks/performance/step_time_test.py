"""Laws of the model that hold for every cluster."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.performance.cluster import Load, ModeledCluster
from benchmarks.performance.step_time import (
    EXCHANGES,
    TOPOLOGIES,
    Route,
    exchange_seconds,
    speed_up,
    step_seconds,
    with_compute,
)
from benchmarks.performance.traffic import mean_bits, packed_bits
from terngrad.planes import plane_count

VALUES = 1_000_000
LOAD = Load(batch=32, images_per_s=320.0)
ROUTES = [Route(topology, servers) for topology in TOPOLOGIES for servers in (1, 3)]
ROUTES += [
    dataclasses.replace(route, sum_codec="ternary")
    for route in ROUTES
    if route.topology in ("two_shot", "ring", "parameter_server")
]
workers_of = st.integers(2, 600)
clusters = st.builds(
    ModeledCluster,
    gbit_per_s=st.floats(0.01, 1e3),
    latency_us=st.floats(0, 1e3),
    workers_per_machine=st.integers(1, 8),
    local_gbyte_per_s=st.floats(0.1, 1e3),
    codec_ns=st.floats(0, 10),
    host_gbyte_per_s=st.floats(0.1, 100),
    overlap=st.floats(0, 1),
)
routes = st.sampled_from(ROUTES)
exchanges = st.sampled_from(EXCHANGES)


def test_bytes_are_those_of_the_published_formulas():
    slow = ModeledCluster(gbit_per_s=8e-3)  # a byte takes a microsecond
    take = lambda workers, exchange, *route: round(
        exchange_seconds(VALUES, slow, workers, exchange, Route(*route)) * 1e6
    )
    assert take(4, "float32", "ring") == 2 * 3 * VALUES * 4 // 4  # 2 (N - 1) / N of 4 bytes each
    assert take(4, "float32", "two_shot") == take(4, "float32", "ring")
    codes, sums = (VALUES * packed_bits(nodes) / 8 for nodes in (1, 4))
    assert take(4, "ternary", "two_shot") == round((codes + sums) * 3 / 4)
    assert take(4, "ternary", "one_shot") == round(3 * codes)
    assert take(4, "ternary", "parameter_server", 1) == round(4 * sums)
    assert take(4, "ternary", "parameter_server", 2) == round(2 * sums)
    assert take(4, "float16", "paper") / take(4, "ternary", "paper") == 8


@given(clusters, routes, exchanges)
def test_one_worker_only_computes(cluster, route, exchange):
    assert step_seconds(VALUES, LOAD, cluster, 1, exchange, route) == LOAD.seconds


@given(clusters, workers_of, routes, exchanges)
def test_a_network_without_limits_leaves_computing_and_the_codec(cluster, workers, route, exchange):
    free = dataclasses.replace(
        cluster, gbit_per_s=math.inf, latency_us=0.0, local_gbyte_per_s=math.inf
    )
    bits, work = 2 + plane_count(workers), 1.0
    if route.sum_codec == "ternary":  # the owner of a share gets its sums, and codes it
        bits, work = 2 + 2 + bits / workers, 1 + 1 / workers
    on_the_way = bits / 8 / cluster.host_gbyte_per_s
    codec = (work * cluster.codec_ns + on_the_way) * 1e-9 * VALUES * (exchange == "ternary")
    found = step_seconds(VALUES, LOAD, free, workers, exchange, route)
    assert found == pytest.approx(LOAD.seconds + codec)


@given(clusters, workers_of, routes, exchanges, st.floats(1, 100))
def test_more_bandwidth_never_slows_down(cluster, workers, route, exchange, factor):
    faster = dataclasses.replace(cluster, gbit_per_s=cluster.gbit_per_s * factor)
    before, after = (
        step_seconds(VALUES, LOAD, c, workers, exchange, route) for c in (cluster, faster)
    )
    assert after <= before * (1 + 1e-12)


@given(clusters, workers_of, routes, exchanges)
def test_overlap_hides_computing_at_most(cluster, workers, route, exchange):
    found = step_seconds(VALUES, LOAD, cluster, workers, exchange, route)
    alone = dataclasses.replace(cluster, overlap=0.0)
    apart = step_seconds(VALUES, LOAD, alone, workers, exchange, route)
    assert LOAD.seconds <= found <= apart <= found + LOAD.seconds * (1 + 1e-9)


def test_machines_add_the_codes_of_their_workers_before_they_send_them():
    slow_cables = ModeledCluster(gbit_per_s=8e-3, workers_per_machine=4)
    seconds = exchange_seconds(VALUES, slow_cables, 8, "ternary", Route(packs_codes=False))
    # Two machines send each other their sums of 4 codes, in 4 bits, in one shot.
    assert round(seconds * 1e6) == 4 * VALUES // 8


def test_coded_means_take_as_many_bits_back_whatever_the_number_of_workers():
    slow = ModeledCluster(gbit_per_s=8e-3)
    route = lambda topology: Route(topology, sum_codec="ternary")
    bytes_of = lambda workers, topology="two_shot": round(
        exchange_seconds(VALUES, slow, workers, "ternary", route(topology)) * 1e6
    )
    assert 1.4 < mean_bits() < math.log2(3) + 0.1
    codes, means, sums = packed_bits(1), mean_bits(), packed_bits(8)
    for workers in (2, 8, 512):  # two workers, too, take two shots
        share = (workers - 1) / workers
        assert bytes_of(workers) == round(VALUES / 8 * (codes + means) * share)
    busier = max(codes + means / 8, sums / 8 + means)
    assert bytes_of(8, "parameter_server") == round(8 * VALUES / 8 * busier)
    floats = (
        exchange_seconds(VALUES, slow, 8, "float32", each) for each in (Route(), route("two_shot"))
    )
    assert next(floats) == next(floats)


def test_unknown_computing_is_what_gives_the_published_speed_up():
    cluster = ModeledCluster(gbit_per_s=1.0, workers_per_machine=4, local_gbyte_per_s=10.0)
    load = with_compute(VALUES, Load(batch=32, speed_up={8: 9.0, 64: 3.0}), cluster)
    assert speed_up(VALUES, load, cluster, 64, Route("paper")) == pytest.approx(3.0)
    assert with_compute(VALUES, load, cluster) == load
    with pytest.raises(ValueError, match=r"no speed of computing gives 20 x with 8 workers"):
        with_compute(VALUES, Load(batch=32, speed_up={8: 20}), cluster)
