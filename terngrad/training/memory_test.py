"""Laws of the codecs' memory: each node has its own, it belongs to a step, complete or zero."""

import numpy as np
import pytest
import tensorflow as tf

from terngrad.codecs.factory import make_codecs
from terngrad.layout import Policy, make_layout
from terngrad.ops.reference import ReferenceKernels
from terngrad.training import checkpoints
from terngrad.training.memory import Memory

FEEDBACK = Policy(codec="5-level-feedback", size_to_binarize=3)


def memory_of(policy=FEEDBACK, nodes=2, first_node=4, size=5):
    """Returns the codecs of a coded and a float variable."""
    layout = make_layout(["a/kernel", "a/bias"], [(size,), (2,)], policy)
    return Memory(make_codecs(layout, ReferenceKernels()), first_node, nodes)


def filled(memory):
    for i, variable in enumerate(memory.variables.values()):
        variable.assign(tf.fill(variable.shape, float(i + 1)))
    return memory


def values(memory):
    return {name: v.numpy().tolist() for name, v in memory.variables.items()}


def test_each_node_has_its_own_of_each_variable_whose_codec_has_one():
    memory = memory_of()
    assert values(memory) == {"memory/4/0": [0.0] * 5, "memory/5/0": [0.0] * 5}
    read = memory.read()
    assert [len(node) for nodes in read for node in nodes] == [1, 1, 0, 0]
    memory.assign(tf.nest.map_structure(lambda value: value + 1.0, read))
    assert values(memory)["memory/5/0"] == [1.0] * 5


def test_codecs_without_a_memory_have_no_variables_and_no_files(tmp_path):
    memory = memory_of(Policy(grad_bits=1))
    assert not memory.variables
    memory.save(str(tmp_path / "worker_0"), 10, 5)
    assert not (tmp_path / "worker_0").exists()
    assert memory.restore(str(tmp_path / "worker_0"), 10) == ""


def test_law_8_the_memory_of_a_step_is_restored(tmp_path):
    saved = filled(memory_of())
    saved.save(str(tmp_path), 10, 5)
    memory = memory_of()
    assert memory.restore(str(tmp_path), 10) == ""
    assert values(memory) == values(saved)


def test_a_memory_is_zero_where_none_of_the_step_was_saved(tmp_path):
    memory = filled(memory_of())
    memory.save(str(tmp_path), 10, 5)
    assert memory.restore(str(tmp_path), 20) == f"{tmp_path} has no checkpoint of step 20"
    assert not np.any(list(values(memory).values()))


@pytest.mark.parametrize(
    ("other", "text"),
    [({"nodes": 4}, "lacks memory/6/0"), ({"size": 6}, "memory/4/0 has shape"), ({"nodes": 1}, "")],
)
def test_a_memory_is_zero_where_it_was_saved_for_others(tmp_path, other, text):
    filled(memory_of()).save(str(tmp_path), 10, 5)
    memory = filled(memory_of(**other))
    why = memory.restore(str(tmp_path), 10)
    assert why and text in why
    assert not np.any(list(values(memory).values()))


def test_a_memory_that_is_dropped_is_named_once(tmp_path):
    filled(memory_of()).save(str(tmp_path), 10, 5)
    memory = memory_of(Policy(grad_bits=1))
    why = memory.restore(str(tmp_path), 10)
    assert "also holds memory/4/0, memory/5/0, which this run does not have" in why
    assert memory.restore(str(tmp_path), 20) == memory.restore(str(tmp_path), 0) == ""


def test_one_more_is_kept_than_of_the_training(tmp_path):
    memory = filled(memory_of())
    for step in (10, 20, 30):
        memory.save(str(tmp_path), step, 1)
    steps = [checkpoints.step_of(path) for path in checkpoints.all_checkpoints(str(tmp_path))]
    assert steps == [20, 30]
