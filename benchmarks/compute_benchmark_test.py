"""The benchmark of what TensorFlow computes in a step."""

import pytest

from benchmarks.compute_benchmark import _Options


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"nets": ("vgg",)}, "flag --nets=vgg: must be of lenet, ..., resnet_v2_200"),
        ({"settings": ("fast",)}, "flag --settings=fast: must be of programs, ..., torch_avx2"),
    ],
)
def test_law_10_wrong_flags_are_told(flags, told):
    with pytest.raises(ValueError) as refusal:
        _Options(**flags)
    assert told in str(refusal.value)


@pytest.mark.slow
def test_settings_take_turns_and_operations_are_counted(run, capfd):
    figures = run(
        *("compute_benchmark", "--settings=no_onednn,arithmetic", "--batch_size=2"),
        *("--steps=1", "--rounds=2"),
    )
    (net,) = figures["nets"]
    assert list(net["settings"]) == ["programs", "no_onednn", "arithmetic"]
    for cells in net["settings"].values():
        assert len(cells) == 2
        assert min(cell["cpu_ms"] for cell in cells) > 0
    assert list(net["profiles"]) == ["programs"]
    assert net["profiles"]["programs"]["ResourceApplyMomentum"] > 0
    assert "| no_onednn " in capfd.readouterr().out


def test_a_worker_that_ends_early_is_named(run, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(SystemExit, match="this command has ended early: /bin/false -m benchmarks"):
        run("compute_benchmark", "--settings=programs")
