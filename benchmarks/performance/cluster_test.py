"""Cluster files are read, and refused with the reason."""

import json

import pytest

from benchmarks.performance import cluster as clusters
from benchmarks.performance.cluster import Load, ModeledCluster

NET = {"batch": 8, "images_per_s": 4}


def test_a_file_gives_a_cluster(tmp_path):
    path = tmp_path / "cluster.json"
    published = {"batch": 8, "speed_up": {"16": 2.5}}
    path.write_text(json.dumps({"gbit_per_s": 10, "nets": {"a": NET, "b": published}}))
    found = clusters.read(str(path))
    loads = {"a": Load(batch=8, images_per_s=4), "b": Load(batch=8, speed_up={16: 2.5})}
    assert found == ModeledCluster(gbit_per_s=10, nets=loads)
    assert found.nets["a"].seconds == 2.0


@pytest.mark.parametrize("name", clusters.presets())
def test_every_preset_is_whole(name):
    assert set(clusters.read(name).nets) == {"alexnet", "googlenet", "vgg_a"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "the file must be an object with some of gbit_per_s"),
        ({}, "gbit_per_s is missing"),
        ({"gbit_per_s": 0}, "gbit_per_s must be above 0"),
        ({"gbit_per_s": 1, "overlap": 2}, r"overlap must be in \[0, 1\]"),
        ({"gbit_per_s": 1, "workers_per_machine": 1.5}, "must be a whole number"),
        ({"gbit_per_s": 1, "speed": 2}, "the file has 'speed'; allowed are gbit_per_s"),
        ({"gbit_per_s": 1, "nets": {"a": 1}}, "a must be an object with some of batch"),
        ({"gbit_per_s": 1, "nets": {"a": {"batch": 1}}}, "a needs batch, and images_per_s or"),
        (
            {"gbit_per_s": 1, "nets": {"a": NET | {"images_per_s": 0}}},
            "a: images_per_s must be above 0",
        ),
        *(
            (
                {"gbit_per_s": 1, "nets": {"a": NET | {"speed_up": speed_up}}},
                r"a\.speed_up must have 1 worker or more, and speed-ups above 0",
            )
            for speed_up in ({"0": 2}, {"4": 2, "-4": 2}, {"4": 0})
        ),
    ],
)
def test_law_10_wrong_files_are_reported(tmp_path, content, message):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        clusters.read(str(path))


def test_law_10_a_missing_file_is_reported_with_what_there_is(tmp_path):
    with pytest.raises(ValueError, match="no such file; allowed are files and ethernet_10"):
        clusters.read(str(tmp_path / "none"))
    (tmp_path / "text").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        clusters.read(str(tmp_path / "text"))
