"""split_dataset.sh distributes the shards over the workers."""

import pathlib
import subprocess

import pytest

_SCRIPT = pathlib.Path(__file__).with_name("split_dataset.sh")


def _split(*arguments, cwd=None) -> subprocess.CompletedProcess:
    command = ["bash", str(_SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def _make_shards(folder: pathlib.Path, count: int) -> list[pathlib.Path]:
    folder.mkdir(exist_ok=True)
    (folder / "validation-00000-of-00001").touch()
    shards = [folder / f"train-{i:05d}-of-{count:05d}" for i in range(count)]
    for shard in shards:
        shard.touch()
    return shards


@pytest.mark.parametrize(("count", "workers"), [(1, 1), (8, 4), (10, 4), (1000, 3)])
def test_contiguous_blocks_of_nearly_equal_size_hold_every_shard_once(tmp_path, count, workers):
    folder = tmp_path / "two words"
    shards = _make_shards(folder, count)
    blocks = []
    for worker in range(workers):
        assert _split(folder, workers, worker).returncode == 0
        links = sorted((folder / f"worker_{worker}_of_{workers}").iterdir())
        assert all(link.readlink().is_absolute() for link in links)
        blocks.append([link.readlink() for link in links])
    assert [shard for block in blocks for shard in block] == shards
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


def test_a_relative_folder_gives_absolute_links(tmp_path, monkeypatch):
    monkeypatch.setenv("CDPATH", ".:/tmp")
    shards = _make_shards(tmp_path / "data", 2)
    assert _split("data", 2, 1, cwd=tmp_path).returncode == 0
    (link,) = (tmp_path / "data/worker_1_of_2").iterdir()
    assert link.readlink() == shards[1]


def test_a_second_run_gives_the_block_of_the_present_shards(tmp_path):
    for shard in _make_shards(tmp_path, 3):
        assert _split(tmp_path, 1, 0).returncode == 0
        shard.unlink()
    shards = _make_shards(tmp_path, 2)
    for _ in range(2):
        assert _split(tmp_path, 1, 0).returncode == 0
        assert sorted(p.resolve() for p in (tmp_path / "worker_0_of_1").iterdir()) == shards


def test_each_block_has_the_names_of_the_classes_where_the_folder_has_them(tmp_path):
    _make_shards(tmp_path, 2)
    labels = tmp_path / "labels.txt"
    labels.write_text("0:rose\n1:tulip\n")
    for _ in range(2):
        assert _split(tmp_path, 2, 1).returncode == 0
        assert (tmp_path / "worker_1_of_2/labels.txt").readlink() == labels
    (tmp_path / "worker_1_of_2/labels.txt").unlink()
    (tmp_path / "worker_1_of_2/labels.txt").write_text("0:copy\n")  # not ours to replace
    assert _split(tmp_path, 2, 1).returncode == 0
    assert (tmp_path / "worker_1_of_2/labels.txt").read_text() == "0:copy\n"


def test_a_second_run_removes_the_link_to_names_that_are_gone(tmp_path):
    _make_shards(tmp_path, 1)
    (tmp_path / "labels.txt").write_text("0:rose\n")
    assert _split(tmp_path, 1, 0).returncode == 0
    (tmp_path / "labels.txt").unlink()
    assert _split(tmp_path, 1, 0).returncode == 0
    assert not (tmp_path / "worker_0_of_1/labels.txt").is_symlink()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{dir}", 2], "needs 3 arguments, DIR N I, got 2"),
        (["{dir}/absent", 2, 0], "no such folder: {dir}/absent"),
        (["{dir}", 0, 0], "N must be an integer >= 1, got '0'"),
        (["{dir}", 2, 2], "I must be 0 to 1, got '2'"),
        (["{dir}", 4, 0], "needs at least one train-* shard for each of 4 workers, {dir} has 3"),
    ],
)
def test_a_bad_argument_is_named_in_one_line_and_nothing_is_made(tmp_path, arguments, message):
    _make_shards(tmp_path, 3)
    before = sorted(tmp_path.iterdir())
    result = _split(*(str(a).format(dir=tmp_path) for a in arguments))
    assert result.returncode == 1
    assert result.stderr == f"split_dataset.sh: {message.format(dir=tmp_path)}\n"
    assert sorted(tmp_path.iterdir()) == before
