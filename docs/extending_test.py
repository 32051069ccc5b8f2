"""The worked examples of docs/extending.md do what the page says."""

import importlib
import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf

from docs import markdown
from inception import programs
from slim import input_pipeline
from slim.conversion import convert
from slim.datasets import catalog, dataset_factory, finding, mnist
from slim.nets import catalog as nets
from slim.preprocessing import preprocessing_factory
from terngrad.cluster.ports import free_ports

BLOCKS = list(markdown.blocks(markdown.REPO / "docs" / "extending.md"))
_TIMEOUT_SECS = 240
_DIGITS = 128

# A process of the engine: it adds the page's row, then runs the suite for itself and for all nodes.
_ENGINE = """
import sys
from tcp import TcpTransport
from terngrad.testing import conformance

conformance.CONNECTIONS |= {{ {row} }}
conformance.POLICIES = {{"mixed": conformance.POLICIES["mixed"]}}
rank, hosts, folder = sys.argv[1:]
for kind in ("tcp", "local"):
    sys.argv[1:] = [kind, rank, hosts, "4", f"{{folder}}/{{kind}}{{rank}}.npz"]
    conformance.main()
"""


def text_of(marker: str) -> str:
    """The block that a comment names."""
    (found,) = (block.text for block in BLOCKS if block.marker == marker)
    return found


def module_of(path: str, folder: Path) -> ModuleType:
    """The file that the page wants to be written, as a module."""
    file = folder / Path(path).name
    file.write_text(text_of(f"file: {path}"))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_file_to_write_is_there_already():
    paths = [
        b.marker.removeprefix("file: ") for b in BLOCKS if (b.marker or "").startswith("file: ")
    ]
    assert len(paths) == 3
    assert [path for path in paths if (markdown.REPO / path).exists()] == []


def test_no_row_to_add_is_there_already():
    rows = [b for b in BLOCKS if (b.marker or "").startswith("row: ")]
    assert rows
    for row in rows:
        module, _, name = row.marker.removeprefix("row: ").rpartition(".")
        keys = getattr(importlib.import_module(module), name)
        assert row.text.strip().partition(":")[0].strip('"') not in keys


def test_every_python_block_is_a_file_or_a_row_or_names_its_test():
    for block in BLOCKS:
        kind, _, rest = block.marker.partition(": ")
        if block.language == "python":
            assert kind in ("file", "row") or (markdown.REPO / rest).is_file(), block.place


@pytest.fixture
def digits(tmp_path):
    """Records of the first digits of the repository's sample."""
    sample = Path(mnist.__file__).parent / "mnist_sample"
    images, labels = mnist.load(str(sample))["train"]
    path = str(tmp_path / "digits" / "train-mnist.tfrecord")
    Path(path).parent.mkdir()
    convert.write_records({path: np.arange(_DIGITS)}, images, labels, mnist.INFO)
    return Path(path).parent


@pytest.mark.slow
def test_the_net_is_trained_by_the_command_of_the_page(tmp_path, digits, monkeypatch, capsys):
    narrow = module_of("slim/nets/narrow.py", tmp_path)
    row = text_of("row: slim.nets.catalog.NETS")
    monkeypatch.setitem(sys.modules, "slim.nets.narrow", narrow)
    for name, spec in eval(f"{{{row}}}", vars(nets)).items():
        monkeypatch.setitem(nets.NETS, name, spec)

    command = shlex.split(text_of("tested: docs/extending_test.py"))
    changed = {
        "--data_dir": digits,
        "--train_dir": tmp_path / "run",
        "--max_steps": 2,
        "--num_gpus": 2,
    }
    flags = [f for f in command[3:] if f.partition("=")[0] not in changed]
    flags += [f"{name}={value}" for name, value in changed.items()]
    programs.train("mnist", "", ["mnist_train", *flags])
    told = capsys.readouterr().out
    assert "narrow: " in told and "Finished training at step 2" in told


def test_the_data_set_is_converted_and_read(tmp_path, monkeypatch):
    bars = module_of("slim/datasets/bars.py", tmp_path)
    monkeypatch.setitem(finding.DATASETS, "bars", bars.INFO)
    monkeypatch.setitem(catalog.MODULES, "bars", bars)
    images = np.zeros([6, 28, 28, 1], np.uint8)
    images[0::2, 14], images[1::2, :, 14] = 255, 255
    labels = np.arange(6) % 2
    for split in bars.INFO.splits:
        np.savez(tmp_path / f"{split}.npz", images=images, labels=labels)

    convert.convert("bars", str(tmp_path / "records"), source_dir=str(tmp_path))
    found = dataset_factory.get_dataset("bars", "test", str(tmp_path / "records"))
    unit = preprocessing_factory.get_preprocessing("unit", is_training=False)
    batches = input_pipeline.evaluation_batches(found, unit, image_size=28, batch_size=6)
    (read, read_labels), *_ = batches.as_numpy_iterator()
    np.testing.assert_array_equal(
        read, unit.finish(tf.constant(images), 28, tf.zeros([2], tf.int64))
    )
    np.testing.assert_array_equal(read_labels, labels)


def test_the_line_that_lists_the_data_sets_is_where_the_page_says():
    page = (markdown.REPO / "docs" / "extending.md").read_text(encoding="utf-8")
    assert "`slim/datasets/catalog.py`" in page
    line = page[page.index("`for module in (mnist") :].split("`")[1]
    source = (markdown.REPO / "slim/datasets/catalog.py").read_text(encoding="utf-8")
    assert line.replace(", bars)", ")") in source


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_the_data_set_names_an_archive_that_it_cannot_read(tmp_path, content):
    bars = module_of("slim/datasets/bars.py", tmp_path)
    if content:
        (tmp_path / "train.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"train\.npz: cannot be read"):
        bars.load(str(tmp_path))


@pytest.mark.slow
def test_the_engine_delivers_what_one_process_does(tmp_path):
    (tmp_path / "tcp.py").write_text(text_of("file: terngrad/exchange/tcp.py"))
    row = text_of("row: terngrad.testing.conformance.CONNECTIONS").strip()
    (tmp_path / "engine.py").write_text(_ENGINE.format(row=row))
    hosts = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    command = [sys.executable, str(tmp_path / "engine.py")]
    processes = [
        subprocess.Popen([*command, str(rank), hosts, str(tmp_path)], cwd=markdown.REPO)
        for rank in range(2)
    ]
    try:
        assert [process.wait(_TIMEOUT_SECS) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    alone = np.load(tmp_path / "local0.npz")
    for rank in range(2):
        together = np.load(tmp_path / f"tcp{rank}.npz")
        # Shares are whole groups of 32 values: padded for each process, of up to 3 and 4 planes.
        padding = 4 * 2 * (3 + 4) * together["mixed buckets"]
        assert 0 <= together["mixed bytes"] + 1 - together["mixed payload"] <= padding + 1
        for i in range(5):
            np.testing.assert_array_equal(together[f"mixed {i}"], alone[f"mixed {i}"])
