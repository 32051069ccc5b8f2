"""The benchmark of training steps on several hosts."""

import pytest

from benchmarks.step_benchmark import _Options
from benchmarks.step_worker import ALONE, KERAS, KERAS_AT_ONCE, KINDS, LOCAL_STEPS


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"bucket_elements": (0,)}, "flag --bucket_elements=0: must be integers >= 1"),
        (
            {"net": "vgg_19", "torch_python": "python"},
            "flag --torch_python=python: DDP is for --net=lenet_slim, cifar10_alexnet, ",
        ),
        (
            {"kinds": ("7 levels and 16 local steps",), "steps": 24},
            "flag --steps=24: must be a multiple of 16 with --kinds=7 levels and 16 local steps",
        ),
        (
            {"engines": ("mpi",)},
            "flag --engines=mpi: must be one or more of sockets, sockets_tls, parameter_server",
        ),
    ],
)
def test_law_10_wrong_flags_are_named(flags, message):
    with pytest.raises(ValueError) as refusal:
        _Options(**flags)
    assert message in str(refusal.value)


def sent_by(figures):
    """Returns the bytes of a host in a step, by the kind of gradients."""
    for cell in figures["cells"]:
        assert cell["rate"] == "unshaped"
        assert len(cell["ms"]) == len(cell["interface_bytes"]) == 2
        assert min(cell["ms"]) > 0
    return {cell["variant"]: min(cell["interface_bytes"]) for cell in figures["cells"]}


@pytest.mark.slow
def test_steps_are_timed_and_their_bytes_are_counted(has_networks, run, tmp_path):
    png = tmp_path / "steps.png"
    flags = ("--rates=unshaped", "--batch_size=2", "--steps=2", "--rounds=2", f"--png={png}")
    figures = run("step_benchmark", *flags)
    sent = sent_by(figures)
    assert set(sent) == set(KINDS) - set(LOCAL_STEPS)
    assert sent["float32"] / sent["float16"] == pytest.approx(2.0, rel=0.05)
    assert sent["float32"] / sent["ternary"] > 32 / 1.4
    # The share of zeros is another one with scales by channel, whose bounds are root mean squares;
    # more levels have more bits, as long as the nets have not learned for long.
    assert 0.5 < sent["ternary by channel"] / sent["ternary"] < 1.5
    first = {cell["variant"]: cell["interface_bytes"][0] for cell in figures["cells"]}
    for levels in (5, 7):
        assert 1 < first[f"{levels} levels by channel"] / first["ternary by channel"] < 2
    assert sent[ALONE] < 0.01 * sent["ternary"]
    for kind in (KERAS, KERAS_AT_ONCE):  # the nets differ, and so do the shares of zeros
        assert 0.5 < sent[kind] / sent["ternary"] < 2.0
    assert png.stat().st_size > 0

    kinds = f"--kinds=ternary,{KERAS}"
    served = sent_by(run("step_benchmark", *flags, "--engines=parameter_server", kinds))
    assert set(served) == {"ternary"}  # the library has no group on a ps here
    assert sent["float32"] / served["ternary"] > 32 / 1.4  # two hosts send all values either way


@pytest.mark.slow
def test_a_step_with_local_steps_sends_its_share_of_an_exchange(has_networks, run):
    in_each, local = "7 levels by channel", next(iter(LOCAL_STEPS))
    # With momentum local steps on two random images a step diverge.
    flags = ("--rates=unshaped", "--batch_size=2", "--steps=16", "--rounds=2", "--optimizer=adam")
    sent = sent_by(run("step_benchmark", *flags, f"--kinds={in_each},{local}"))
    # The changes of many steps have fewer zeros than gradients of two images.
    assert 1 < LOCAL_STEPS[local] * sent[local] / sent[in_each] < 4
