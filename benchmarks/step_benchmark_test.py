"""The benchmark of training steps on several hosts."""

import pytest

from benchmarks.step_benchmark import _Options
from benchmarks.step_worker import ALONE, KERAS, KERAS_AT_ONCE, KINDS


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"rates": ("2mbit",)}, "flag --rates=2mbit: must be of 100mbit, 1gbit, unshaped"),
        ({"bucket_elements": (0,)}, "flag --bucket_elements=0: must be integers >= 1"),
        ({"hosts": 1}, "flag --hosts=1"),
        (
            {"net": "vgg_19", "torch_python": "python"},
            "flag --torch_python=python: DDP is for --net=lenet_slim, alexnet_v2, vgg_16, ",
        ),
        (
            {"engines": ("mpi",)},
            "flag --engines=mpi: must be of sockets, sockets_tls, collective, parameter_server",
        ),
    ],
)
def test_law_10_wrong_flags_are_told(flags, told):
    with pytest.raises(ValueError) as refusal:
        _Options(**flags)
    assert told in str(refusal.value)


@pytest.mark.slow
def test_steps_are_timed_and_their_bytes_are_counted(has_networks, run, tmp_path):
    png = tmp_path / "steps.png"
    figures = run(
        *("step_benchmark", "--rates=unshaped", "--batch_size=2", "--steps=2", "--rounds=2"),
        *("--engines=sockets,parameter_server", f"--png={png}"),
    )
    sent = {}
    for cell in figures["cells"]:
        assert cell["rate"] == "unshaped"
        assert len(cell["ms"]) == len(cell["interface_bytes"]) == 2
        assert min(cell["ms"]) > 0
        sent[cell["side"]] = min(cell["interface_bytes"])
    served = {f"{kind}, parameter_server" for kind in KINDS if kind not in (KERAS, KERAS_AT_ONCE)}
    assert sent.keys() == {f"{kind}, sockets" for kind in KINDS} | served
    for engine in ("sockets", "parameter_server"):
        floats = sent[f"float32, {engine}"]
        ternary = sent[f"ternary, {engine}"]
        assert floats / sent[f"float16, {engine}"] == pytest.approx(2.0, rel=0.05)
        assert floats / ternary > 32 / 1.4
        assert sent[f"{ALONE}, {engine}"] < 0.01 * ternary
    for kind in (KERAS, KERAS_AT_ONCE):  # the nets differ, and so do the shares of zeros
        assert 0.5 < sent[f"{kind}, sockets"] / sent["ternary, sockets"] < 2.0
    assert png.stat().st_size > 0
