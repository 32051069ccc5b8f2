"""The benchmark of exchanges: its formula, its flags, and a short run between two hosts."""

import importlib.util
import math

import numpy as np
import pytest

from benchmarks.exchange_benchmark import _Options, formula_bytes
from benchmarks.exchange_worker import NETS, shapes_of
from benchmarks.performance.traffic import BOTH_WAYS, mean_bits, packed_bits
from terngrad.planes import plane_count

MILLION = 1_000_000


@pytest.mark.parametrize(("size", "bits"), [(2, 2), (4, 4.5), (8, 6.125)])
def test_the_formula_gives_the_bits_that_a_host_sends_for_each_parameter(size, bits):
    assert 8 * formula_bytes(MILLION, size, "ternary")[0] / MILLION == bits
    sent = formula_bytes(MILLION, size, "float32")[0]
    assert sent == 8 * MILLION * (size - 1) / size
    assert formula_bytes(MILLION, size, "float16")[0] == sent / 2


def test_codes_of_normal_gradients_take_little_more_bits_than_their_entropy():
    # 0.317 of the codes are not zero: 0.317 bits for signs, 0.901 for where they are.
    assert 1.218 < packed_bits(1) == pytest.approx(1.31, abs=0.02)
    assert packed_bits(1) < packed_bits(2) < packed_bits(4) < 2.6
    assert packed_bits(8) < packed_bits(32) < 4 < plane_count(32) == 7  # a larger sum is coded, too


@pytest.mark.parametrize(
    ("size", "bits"),
    [
        (2, packed_bits(1)),
        (3, (packed_bits(1) + packed_bits(3)) * 2 / 3),
        (8, (packed_bits(1) + packed_bits(8)) * 7 / 8),
    ],
)
def test_hosts_that_are_joined_by_sockets_send_codes_in_a_prefix_code(size, bits):
    sent = formula_bytes(MILLION, size, "ternary", code_bits=packed_bits)[0]
    assert 8 * sent / MILLION == pytest.approx(bits)


def test_codes_both_ways_take_as_many_bits_back_for_any_number_of_hosts():
    for size in (2, 8, 64):
        sent = formula_bytes(MILLION, size, BOTH_WAYS, code_bits=packed_bits)[0]
        bits = (packed_bits(1) + mean_bits()) * (size - 1) / size
        assert 8 * sent / MILLION == pytest.approx(bits)
    assert mean_bits() == pytest.approx(1.54, abs=0.02)


def test_the_nets_have_the_sizes_that_their_papers_give():
    millions = [
        sum(math.prod(shape) for shape in shapes_of(net).values()) / MILLION for net in NETS
    ]
    np.testing.assert_allclose(millions, [3.27, 1.07, 61.1, 132.9], rtol=0.002)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"hosts": (1,)}, "flag --hosts=1: must be integers from 2 to 99"),
        (
            {"engines": ("nccl",)},
            "flag --engines=nccl: must be one or more of sockets, sockets_tls, mpi, ",
        ),
        ({"rounds": 0}, "flag --rounds=0"),
    ],
)
def test_law_10_wrong_flags_are_named(flags, message):
    with pytest.raises(ValueError) as refusal:
        _Options(**flags)
    assert message in str(refusal.value)


@pytest.mark.slow
def test_law_7_the_interface_counts_what_the_formula_and_the_exchange_say(
    has_networks, run, tmp_path, capsys
):
    engines = ["sockets"]
    if importlib.util.find_spec("mpi4py"):
        engines.append("mpi")
    arguments = ("--hosts=2", "--rates=1gbit", f"--engines={','.join(engines)}", "--rounds=3")
    figures = run(
        "exchange_benchmark", *arguments, "--gradients=lenet_slim", f"--png={tmp_path / 'a.png'}"
    )
    assert len(figures["cells"]) == 5 * len(engines)
    for cell in figures["cells"]:
        assert len(cell["ms"]) == 3
        assert min(cell["ms"]) > 0
        assert cell["interface_bytes"] == pytest.approx(cell["formula_bytes"], rel=0.05)
        if cell["exchange"] != "float32 ring":  # the engine does not count its own
            assert cell["counted_bytes"] == pytest.approx(cell["formula_bytes"], rel=0.02)
    assert (tmp_path / "a.png").stat().st_size > 0
    assert "| lenet_slim | 2     | 1gbit | sockets | ternary" in capsys.readouterr().out


@pytest.mark.slow
def test_law_7_network_interfaces_count_the_bytes_that_the_formula_says(
    has_networks, run, tmp_path, capsys
):
    hosts = ("--hosts=2", "--rates=1gbit", "--engines=parameter_server", "--servers=2")
    work = ("--gradients=lenet_slim", "--rounds=3", f"--png={tmp_path / 'a.png'}")
    figures = run("exchange_benchmark", *hosts, *work)
    assert [cell["exchange"] for cell in figures["cells"]] == ["float32", "float16", "ternary"]
    for cell in figures["cells"]:
        for way in ("bytes", "received_bytes"):
            formula = pytest.approx(cell[f"formula_{way}"], rel=0.05)
            assert cell[f"interface_{way}"] == formula
            assert cell[f"counted_{way}"] == formula
        busiest = cell["formula_busiest_bytes"]
        assert max(cell["ps_bytes"], cell["ps_received_bytes"]) >= 0.95 * busiest
        assert cell["ps_cpu_ns_by_value_and_worker"] > 0
    assert (tmp_path / "a.png").stat().st_size > 0
    table = capsys.readouterr().out.partition("| gradients")[2]
    assert "| lenet_slim | 2     | 1gbit | 2 ps   | ternary" in table
