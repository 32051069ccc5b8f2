"""The program predicts, compares with what is published and measured, and draws."""

import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).with_name("results")


def test_a_cluster_of_ones_own_is_predicted_and_drawn(run, tmp_path, capsys):
    nets = {"lenet": {"batch": 10, "images_per_s": 1000, "speed_up": {"4": 2.0}}}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"gbit_per_s": 0.1, "nets": nets}))
    pictures = [tmp_path / "workers.png", tmp_path / "bandwidth.png"]
    flags = (f"--png={pictures[0]}", f"--bandwidth_png={pictures[1]}", "--max_workers=6")
    figures = run("performance_model", f"--cluster={file}", *flags)
    values = figures["values"]["lenet"]
    speeds = figures["images/s"]["lenet"]
    assert list(speeds["ternary"]) == ["1", "2", "4", "6"]
    assert speeds["float32"]["1"] == speeds["ternary"]["1"] == pytest.approx(1000)
    seconds = 0.01 + 2 * (3 / 4) * 32 * values / 0.1e9
    assert speeds["float32"]["4"] == pytest.approx(40 / seconds)
    published = figures["published"]["lenet"]["4"]
    ratio = speeds["ternary"]["4"] / speeds["float32"]["4"]
    assert published["published"] == 2.0 and published["two_shot"] == pytest.approx(ratio)
    assert all(picture.stat().st_size > 1000 for picture in pictures)
    assert "lenet, 6 workers: ternary gradients save 5 % or more up to" in capsys.readouterr().out


def test_coded_sums_keep_the_time_of_an_exchange_where_exact_ones_grow(run):
    times = {}
    for sum_codec in ("exact", "ternary"):
        flags = "--cluster=paper_ethernet", "--nets=vgg_a", f"--sum_codec={sum_codec}"
        figures = run("performance_model", *flags)
        times[sum_codec] = figures["exchange, ms"]["vgg_a"]["ternary"]
    growth = {each: found["512"] / found["64"] for each, found in times.items()}
    assert growth["ternary"] < 1.1 < growth["exact"]


def test_measured_exchanges_are_predicted_within_15_percent_in_the_median(run):
    files = [RESULTS / f"2026-11-{name}.json" for name in ("21-exchange", "22-parameter-server")]
    figures = run("performance_model", f"--validate={files[0]},{files[1]}")
    assert figures["cells predicted"] == sum(not cell["fitted"] for cell in figures["cells"]) > 100
    assert figures["median error"] <= 0.15


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cluster=none"], "--cluster=none: no such file; allowed are files and ethernet_10"),
        (["--nets=lenet"], "--nets=lenet: must be one or more of alexnet, googlenet, vgg_a"),
        (["--topology=star"], "--topology=star: must be"),
        (
            ["--sum_codec=ternary", "--topology=paper"],
            "--sum_codec=ternary: needs --topology=two_shot or ring or parameter_server",
        ),
        (["--validate=none.json"], "--validate=none.json: none.json: No such file"),
    ],
)
def test_law_10_wrong_flags_are_reported(run, flags, message):
    with pytest.raises(SystemExit, match=message):
        run("performance_model", *flags)
