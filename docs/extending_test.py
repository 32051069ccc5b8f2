"""The worked examples of docs/extending.md do what the page says."""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf

from docs import markdown
from slim import input_pipeline
from slim.conversion import convert
from slim.datasets import dataset_factory
from slim.preprocessing import preprocessing_factory
from slim.testing import write_digits
from terngrad.testing.addresses import free_ports
from terngrad.testing.processes import finished

BLOCKS = list(markdown.blocks(markdown.REPO / "docs" / "extending.md"))

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


def commands_below(marker: str) -> list[list[str]]:
    """The commands of the blocks below a comment."""
    found = (b for b in BLOCKS if b.marker == marker and b.language == "bash")
    return [list(words) for block in found for words in block.commands()]


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
            assert kind in ("file", "row", "lines") or (markdown.REPO / rest).is_file(), block.place


@pytest.fixture
def digits(tmp_path):
    """Records of the first digits of the repository's sample."""
    (folder := tmp_path / "digits").mkdir()
    write_digits(folder, count=128)
    return folder


@pytest.fixture
def edited(tmp_path):
    """A copy of the repository's packages, edited as the page says."""
    copy, leave_out = tmp_path / "repository", shutil.ignore_patterns("*_test.py", "__pycache__")
    for package in ("slim", "terngrad", "inception"):
        shutil.copytree(markdown.REPO / package, copy / package, ignore=leave_out)
    for block in BLOCKS:
        kind, _, where = block.marker.partition(": ")
        if kind == "file":
            (copy / where).write_text(block.text)
        elif kind == "row":
            module, _, name = where.rpartition(".")
            file = copy / f"{module.replace('.', '/')}.py"
            head, opening, rest = re.split(rf"(^{name}\b.* = {{\n)", file.read_text(), flags=re.M)
            file.write_text(head + opening + block.text + rest)
        elif kind == "lines":
            replace_lines(copy / where, block.text.splitlines())
    return copy


def replace_lines(file, lines):
    """Replaces each line of a file that begins as one of these does."""
    text = file.read_text()
    for line in lines:
        beginning = re.escape(re.match(r".*?(?: import|\()", line)[0])
        text, count = re.subn(rf"^{beginning}.*$", line, text, flags=re.M)
        assert count == 1, line
    file.write_text(text)


def run(words, folder, **flags):
    """Runs a command of the page in a folder, with other values of some flags."""
    if words[:2] == ["bash", "scripts/launch_local.sh"]:
        words = ["python", "-m", "inception.launch", *words[2:]]
    kept = [word for word in words[1:] if word.partition("=")[0].strip("-") not in flags]
    changed = [f"--{name}={value}" for name, value in flags.items()]
    command = [sys.executable, *kept, *changed]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_net_is_trained_by_the_command_of_the_page(edited, digits, tmp_path):
    (words,) = commands_below("tested: docs/extending_test.py")
    assert "inception.mnist_train" in words
    changed = {"data_dir": digits, "train_dir": tmp_path / "run", "max_steps": 2, "num_gpus": 2}
    printed = run(words, edited, **changed)
    assert "narrow: " in printed and "Finished training at step 2" in printed


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_data_set_is_converted_and_trained_by_the_commands_of_the_page(edited, tmp_path):
    write_bars(tmp_path)
    convert_words, train_words, evaluate_words, *others = commands_below(
        "needs: the data set above"
    )
    records, folder = tmp_path / "records", tmp_path / "run"
    run(convert_words, edited, dataset_dir=records, source_dir=tmp_path)
    printed = run(train_words, edited, data_dir=records, train_dir=folder, max_steps=2)
    assert "Finished training at step 2" in printed
    place = {"checkpoint_dir": folder, "eval_dir": folder}
    assert "[6 examples]" in run(evaluate_words, edited, data_dir=records, **place)
    assert len(others) == 4
    for number, words in enumerate(others):
        is_slims = "slim.train_image_classifier" in words
        changed = {
            "dataset_dir" if is_slims else "data_dir": records,
            "max_number_of_steps" if is_slims else "max_steps": 2,
            "train_dir": tmp_path / f"run_{number}",
        }
        assert "[0] Finished training at step" in run(words, edited, **changed)


def write_bars(folder):
    """Writes both archives, of six images; returns these and their labels."""
    images = np.zeros([6, 28, 28, 1], np.uint8)
    images[0::2, 14], images[1::2, :, 14] = 255, 255
    labels = np.arange(6) % 2
    for split in ("train", "test"):
        np.savez(folder / f"{split}.npz", images=images, labels=labels)
    return images, labels


def test_the_data_set_is_converted_and_read(tmp_path, monkeypatch):
    bars = module_of("slim/datasets/bars.py", tmp_path)
    monkeypatch.setitem(dataset_factory.DATASETS, "bars", bars.INFO)
    monkeypatch.setitem(dataset_factory.MODULES, "bars", bars)
    images, labels = write_bars(tmp_path)
    convert.convert("bars", str(tmp_path / "records"), source_dir=str(tmp_path))
    found = dataset_factory.get_dataset("bars", "test", str(tmp_path / "records"))
    unit = preprocessing_factory.get_preprocessing("unit", is_training=False)
    batches = input_pipeline.evaluation_batches(found, unit, image_size=28, batch_size=6)
    (read, read_labels), *_ = batches.as_numpy_iterator()
    np.testing.assert_array_equal(
        read, unit.finish(tf.constant(images), 28, tf.zeros([2], tf.int64))
    )
    np.testing.assert_array_equal(read_labels, labels)


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
    command = [sys.executable, "-m", "engine"]
    commands = [[*command, str(rank), hosts, str(tmp_path)] for rank in range(2)]
    for output, status in finished(commands, {"PYTHONPATH": str(tmp_path)}):
        assert status == 0, output
    alone = np.load(tmp_path / "local0.npz")
    for rank in range(2):
        together = np.load(tmp_path / f"tcp{rank}.npz")
        # Shares are whole groups of 32 values: padded for each process, of up to 3 and 4 planes.
        padding = 4 * 2 * (3 + 4) * together["mixed buckets"]
        assert 0 <= together["mixed bytes"] + 1 - together["mixed payload"] <= padding + 1
        for i in range(5):
            np.testing.assert_array_equal(together[f"mixed {i}"], alone[f"mixed {i}"])


def test_the_places_that_offer_an_engine_exist_and_have_what_the_page_says():
    text = (markdown.REPO / "docs/extending.md").read_text(encoding="utf-8")
    section = text.partition("offer an engine to users.")[2]
    places = re.findall(r"^\d\. `([\w/]+\.py)`:((?:.|\n(?!\d|\n))*)", section, re.MULTILINE)
    assert len(places) == 5
    for path, rest in places:
        source = (markdown.REPO / path).read_text(encoding="utf-8")
        names = re.findall(r"`(_?[A-Za-z_]+)`", rest)
        assert [name for name in names if name not in source and name != "Group"] == []
