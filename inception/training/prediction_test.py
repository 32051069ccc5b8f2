"""The prediction of a step's time, from its parts to its line."""

import dataclasses
import functools
import types

import numpy as np
import pytest
import tensorflow as tf

from inception.cluster import joining
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.training import prediction, preparation
from inception.training.prediction import _StepTime
from terngrad.codecs.factory import make_codecs
from terngrad.exchange.connection import NetworkSpeed
from terngrad.exchange.exchange import Payload
from terngrad.exchange.local import LocalExchange
from terngrad.exchange.parameter_server.exchange import ParameterServerExchange
from terngrad.exchange.two_shot import TwoShotExchange
from terngrad.layout import Policy, make_layout, suited_settings
from terngrad.planes import SUM_BLOCK, plane_count
from terngrad.testing.addresses import free_addresses
from terngrad.testing.conformance import bucket_of
from terngrad.training.runtime import choose_kernels

KERNELS = choose_kernels().kernels
NETWORK = NetworkSpeed(latency_secs=2e-4, bits_per_sec=1e9)


def test_a_part_of_computing_hides_the_network():
    assert _StepTime(computing=1.0, codec=0.1, network=0.0).seconds == pytest.approx(1.1)
    assert _StepTime(computing=1.0, codec=0.1, network=0.2).seconds == pytest.approx(1.1)
    assert _StepTime(computing=1.0, codec=0.1, network=2.0).seconds == pytest.approx(2.85)


def test_the_line_tells_the_ratio_and_its_parts():
    coded, plain = _StepTime(0.1, 0.01, 0.05), _StepTime(0.1, 0.0, 0.4)
    line = prediction._comparison("ternary", coded, plain, NETWORK)
    assert line == (
        "Prediction: ternary 3.5 x faster than float32 on this network (1,000 Mbit/s, 0.20 ms a "
        "message): 135 ms a step instead of 475; computing takes 100, the codec 10, the network "
        "50 instead of 400."
    )
    assert "ternary 3.5 x slower" in prediction._comparison("ternary", plain, coded, NETWORK)


def test_local_steps_wait_for_all_of_an_exchange_once():
    step = _StepTime(computing=1.0, codec=0.1, network=0.2)
    assert step.seconds == pytest.approx(1.1)
    assert step.with_local_steps(10).seconds == pytest.approx(1.03)
    assert step.with_local_steps(10).exchange_share == pytest.approx(0.03 / 1.03)


def test_an_exchange_that_overlaps_waits_only_for_what_takes_longer_than_the_steps():
    for network, seconds in ((5.0, 1.01), (20.0, 2.01)):
        step = _StepTime(computing=1.0, codec=0.1, network=network).with_local_steps(10)
        overlapping = dataclasses.replace(step, overlaps=True)
        assert overlapping.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("mbits", "chosen", "recommended"),
    [
        (10_000, False, "--codec=float --local_steps=1, 104 ms"),
        (1_000, False, "--codec=ternary --sum_codec=exact --local_steps=1, 105 ms"),
        (110, False, "--codec=ternary --sum_codec=ternary --local_steps=1, 109 ms"),
        (90, False, "--codec=ternary-feedback --sum_codec=ternary --local_steps=4, 110 ms"),
        (50, False, "--codec=ternary-feedback --sum_codec=exact --local_steps=16, 106 ms"),
        (20, False, "--codec=ternary-feedback --sum_codec=ternary --local_steps=16, 110 ms"),
        (10, False, "--codec=ternary-feedback --sum_codec=exact --local_steps=64, 107 ms"),
        (10, True, "--codec=ternary --sum_codec=exact --local_steps=64, 107 ms"),
        (1, False, "--codec=ternary-feedback --sum_codec=ternary --local_steps=64, 150 ms"),
    ],
)
def test_the_recommendation_is_the_least_change_whose_exchange_is_short(mbits, chosen, recommended):
    way = prediction._Gradients
    sent = {way("float32"): 0.16}  # seconds at 1 Gbit/s
    for codec in ("ternary", "ternary-feedback"):
        sent |= {way(codec): 0.0045, way(codec, "ternary"): 0.0032}
    times = {
        each: _StepTime(0.1, 0.004 if each.codec == "float32" else 0.005, seconds * 1000 / mbits)
        for each, seconds in sent.items()
    }
    local = "ternary" if chosen else "ternary-feedback"
    line = prediction._recommended(times, "ternary", local)
    assert line.startswith(f"Recommended here: {recommended} a step, the exchange ")
    assert ("though its exchange takes more than 10 %" in line) == (mbits == 1)
    assert "\n" not in line


def test_coded_sums_are_named_only_where_they_can_be():
    way = prediction._Gradients
    exact = {way("float32"): _StepTime(0.1, 0.0, 0.1), way("ternary"): _StepTime(0.1, 0.0, 0.01)}
    line = prediction._recommended(exact, "ternary", "ternary")
    assert line == (
        "Recommended here: --codec=ternary --sum_codec=exact --local_steps=1, 100 ms a step, the "
        "exchange 0 % of it: the first of float32, ternary, and ternary with 4, 16 or 64 local "
        "steps whose exchange takes at most 10 %."
    )
    both = exact | {way("ternary", "ternary"): _StepTime(0.1, 0.0, 0.005)}
    line = prediction._recommended(both, "ternary", "ternary")
    assert "64 local steps, exact sums before coded ones, whose exchange" in line
    assert way("ternary", "ternary").named(4) == (
        "ternary with --sum_codec=ternary and --local_steps=4"
    )


def test_only_codecs_whose_means_are_sums_are_tried_with_coded_ones():
    own = "terngrad.codecs.examples:OwnScaleTernaryCodec"
    names, sums = ("float32", "ternary", own), ("exact", "ternary")
    found = prediction._policies(names, own, Policy(codec=own), sums)
    assert [(way.codec, way.sum_codec) for way in found] == [
        *(("float32", "exact"), ("ternary", "exact"), ("ternary", "ternary"), (own, "exact"))
    ]
    assert all(policy.sum_codec == way.sum_codec for way, policy in found.items())


def test_ternary_gradients_are_tried_as_their_name_alone_makes_them():
    found = prediction._policies(("float32", "ternary"), "float32", Policy(), ("exact",))
    policy = found[prediction._Gradients("ternary")]
    suited = suited_settings("ternary")._asdict()
    assert suited == {name: getattr(policy, name) for name in suited}


def packing_of(processes, density):
    """Returns what has packed codes of which a share is not 0; if all are, they are 1."""
    exchange = LocalExchange(1, KERNELS)
    exchange.num_nodes = processes
    packing = prediction._Packing(exchange, KERNELS)
    chosen = np.random.default_rng(0).random(32 * 2000) < density
    signs = np.random.default_rng(1).random(32 * 2000) < 0.5
    bits = [chosen, chosen & signs & (density < 1)]
    planes = [np.packbits(each, bitorder="little").view(np.uint32) for each in bits]
    packing.sum_codes(bucket_of([tf.constant(np.stack(planes, axis=1))], "a", 1))
    return packing


@pytest.mark.parametrize(("density", "least", "maximum"), [(0.1, 0.3, 0.4), (1.0, 0.0, 0.01)])
def test_the_share_of_bytes_is_that_of_the_codes_of_this_net(density, least, maximum):
    assert least <= packing_of(1, density).packed(Payload(1.0, 1.0)).sent <= maximum
    floats = prediction._Packing(LocalExchange(1, KERNELS), KERNELS)
    assert floats.packed(Payload(1.0, 2.0)) == Payload(1.0, 2.0)


@pytest.mark.parametrize("processes", [2, 8, 64])
def test_sums_are_packed_as_those_of_independent_codes(processes):
    density = 0.3
    planes = plane_count(processes)
    found = planes * packing_of(processes, density).packed(Payload(1.0, 1.0)).received
    outcomes = [density / 2, 1 - density, density / 2]
    sums = functools.reduce(np.convolve, [outcomes] * processes)
    entropy = -np.sum(sums * np.log2(np.maximum(sums, 1e-300)))
    assert entropy - 0.05 < found < entropy + 0.3


class _Mesh(TwoShotExchange):
    packs_codes = True


class _Eight:
    rank, size = 3, 8


def test_coded_means_take_a_bit_and_a_half_each_way():
    size, bits = 1 << 16, {}
    exchange = _Mesh(_Eight(), 1, KERNELS)
    training = types.SimpleNamespace(exchange=exchange)
    connection = types.SimpleNamespace(exchange_copies=1)
    packing = types.SimpleNamespace(packed=lambda p: Payload(0.75 * p.sent, 0.75 * p.received))
    for sum_codec in ("exact", "ternary"):
        layout = make_layout(["v/kernel"], [(size,)], Policy(grad_bits=1, sum_codec=sum_codec))
        codecs = make_codecs(layout, KERNELS)
        network = NetworkSpeed(latency_secs=0.0, bits_per_sec=1.0)
        bits[sum_codec] = prediction._sending(codecs, training, connection, network, packing) / size
    assert bits["exact"] == pytest.approx(7 / 8 * 0.75 * (2 + 5), rel=0.01)
    scale = 2 * 7 / 8 * 32 / SUM_BLOCK
    assert bits["ternary"] == pytest.approx(7 / 8 * (1.5 + 1.5) + scale, rel=0.01)


def test_coded_sums_take_a_ps_two_more_messages_and_a_mesh_none():
    exact, coded = (
        make_codecs(make_layout(["v/kernel"], [(9,)], Policy(grad_bits=1, sum_codec=each)), KERNELS)
        for each in ("exact", "ternary")
    )
    mesh, ps = (types.SimpleNamespace(hops=each.hops) for each in (_Mesh, ParameterServerExchange))
    count = prediction._messages
    assert count(coded, mesh) == count(exact, mesh) == 3
    assert count(coded, ps) == count(exact, ps) + 2


def test_a_worker_without_others_is_told_that_there_is_nothing_to_predict(tmp_path, capsys):
    config = TrainConfig(
        dataset_name="mnist", net="mlp", benchmark_mode=True, batch_size=4, train_dir=str(tmp_path)
    )
    cluster = ClusterConfig(worker_hosts=tuple(free_addresses(1)), predict=True)
    with joining.join(cluster) as group:
        assert group.connection
        prepared = preparation.prepare(config, group, cluster, ["/CPU:0"])
        prepared.lock.close()
    output = capsys.readouterr().out
    assert "--predict: nothing to predict, as one worker without a ps exchanges no" in output
    assert "Prediction:" not in output
