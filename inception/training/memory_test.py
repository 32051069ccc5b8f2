"""Law 8 of trainings whose codec has a memory: each worker saves its own."""

import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from inception.flags.configs import TrainConfig
from inception.testing.runs import SMALL, as_flags, command_of_two, newest_state
from inception.training import asynchronous, restoring
from inception.training.build import build_training
from inception.training.problem import problem_of
from terngrad.library.group import Group
from terngrad.testing import forked
from terngrad.training.memory import Memory

FLAGS = SMALL | {"codec": "5-level-feedback"}
ZERO = r"The memory of --codec=\S+ starts from zero: (.*)\."


def arguments(train_dir, **flags):
    return as_flags(FLAGS | {"train_dir": train_dir} | flags)


def are_equal(left, right):
    return all(np.array_equal(left[name], right[name]) for name in left.keys() | right.keys())


@pytest.mark.slow
def test_law_8_a_training_goes_on_with_its_memory_or_says_that_it_has_none(tmp_path, train_here):
    whole, parts, lost = (tmp_path / name for name in ("whole", "parts", "lost"))
    train_here(whole, max_steps=8)
    train_here(parts, max_steps=4)
    shutil.copytree(parts, lost)
    shutil.rmtree(lost / "worker_0")
    assert not re.search(ZERO, train_here(parts, max_steps=8))
    assert are_equal(newest_state(whole), newest_state(parts))
    assert are_equal(newest_state(whole / "worker_0"), newest_state(parts / "worker_0"))
    found = re.search(ZERO, train_here(lost, max_steps=8))
    assert found and found[1] == f"{lost}/worker_0 has no checkpoint of step 4"
    assert not are_equal(newest_state(whole), newest_state(lost))


def test_a_memory_that_no_codec_needs_any_more_is_dropped(tmp_path, capsys):
    config = TrainConfig(dataset_name="mnist", benchmark_mode=True, net="mlp", train_dir=tmp_path)
    before, now = (SimpleNamespace(step=tf.Variable(4), memory=Memory([], 0, 1)) for _ in range(2))
    before.memory.add({"memory/0/0": tf.Variable([1.0])})
    before.memory.save(f"{tmp_path}/worker_0", 4, 5)
    restoring.restore_memory(config, now, 0)
    dropped = f"This run keeps no memory; that of {tmp_path}/worker_0/model.ckpt-4 is dropped.\n"
    assert capsys.readouterr().out == dropped


@pytest.mark.slow
def test_a_share_of_the_memory_counts_in_the_next_step(tmp_path, train_here):
    """With a share of 0 it counts for nothing: a training goes on without it as with it."""
    names = ("none", "lost", "half", "all")
    none, lost, half, whole = (tmp_path / name for name in names)
    train_here(none, max_steps=4, outer_feedback=0)
    train_here(lost, max_steps=2, outer_feedback=0)
    shutil.rmtree(lost / "worker_0")
    train_here(lost, max_steps=4, outer_feedback=0)
    assert are_equal(newest_state(none), newest_state(lost))
    train_here(half, max_steps=4, outer_feedback=0.5)
    train_here(whole, max_steps=4)
    assert not are_equal(newest_state(half), newest_state(none))
    assert not are_equal(newest_state(half), newest_state(whole))


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", ["collective", pytest.param("parameter_server", marks=pytest.mark.exhaustive)]
)
def test_law_8_all_workers_of_a_training_go_on_with_their_memories(tmp_path, train_here, engine):
    for steps in (4, 8):
        flags = arguments(tmp_path / "parts", max_steps=steps)
        done = forked.run(command_of_two(engine, *flags))
        assert done.returncode == 0, done.stdout + done.stderr
        assert not re.search(ZERO, done.stdout)
    train_here(tmp_path / "whole", max_steps=8, num_nodes=4, batch_size=16)
    parts = newest_state(tmp_path / "parts" / "worker_0") | newest_state(
        tmp_path / "parts" / "worker_1"
    )
    assert are_equal(parts, newest_state(tmp_path / "whole" / "worker_0"))
    assert are_equal(newest_state(tmp_path / "parts"), newest_state(tmp_path / "whole"))


def test_an_asynchronous_worker_has_one_memory_of_its_codecs():
    settings = {"codec": FLAGS["codec"], "net": "mlp", "num_nodes": 2, "batch_size": 8}
    settings["outer_feedback"] = 0.5
    config = TrainConfig(dataset_name="mnist", benchmark_mode=True, **settings)
    training = build_training(config, problem_of(config), 10.0, ["/CPU:0"])
    prepared = SimpleNamespace(
        config=config, training=training, devices=["/CPU:0"], group=Group(1, 2)
    )
    reduction = asynchronous._reduction(prepared)
    assert (reduction.first_node, reduction.memory_decay) == (2, 0.5)
    ids = lambda memory: {name: id(variable) for name, variable in memory.variables.items()}
    assert ids(reduction.memory) == ids(training.memory) != {}


def test_law_10_a_codec_that_there_is_not_is_named(tmp_path, train_here):
    with pytest.raises(SystemExit, match="--codec=no_such_module:Codec: there is no module no_s"):
        train_here(tmp_path, codec="no_such_module:Codec")
    assert not list(tmp_path.iterdir())
