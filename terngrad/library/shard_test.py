"""Shares of data: equal ones for all, and what is left out is logged."""

import collections
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed

from terngrad.library.group import Group

ALONE = Group()


@pytest.mark.parametrize("unknown", [False, True])
def test_each_worker_gets_equally_many_elements_and_what_is_left_out_is_reported(unknown, capsys):
    whole = tf.data.Dataset.range(7).map(lambda i: {"x": i, "y": (i, -i)})
    if unknown:
        whole = whole.filter(lambda each: True)
    shares = [Group(rank, 3).shard(whole) for rank in range(3)]
    found = [[int(each["y"][1]) for each in share] for share in shares]
    assert found == [[0, -3], [-1, -4], [-2, -5]]
    reported = "up to 2 of its last elements" if unknown else "1 of 7 elements"
    assert capsys.readouterr().out.startswith(f"shard: {reported} are left out")


@pytest.fixture(name="unseeded")
def _unseeded():
    """TensorFlow without a seed, which would hold on all workers."""
    before = context.global_seed()
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(before)


@pytest.mark.usefixtures("unseeded")
def test_a_data_set_in_an_order_of_its_own_on_each_worker_is_reported(capsys, monkeypatch):
    # TensorFlow wants seeds where these tests turn its determinism on.
    monkeypatch.setattr(random_seed.config, "is_op_determinism_enabled", lambda: False)
    whole = tf.data.Dataset.range(6)
    for dataset, is_reported in (
        (whole.shuffle(4).map(lambda i: i + 1).batch(2), True),
        (whole.shuffle(4, seed=1).batch(2), False),
        (tf.data.Dataset.zip(whole, whole), False),
    ):
        Group(0, 2).shard(dataset)
        assert ("shuffled before it is dealt out" in capsys.readouterr().out) == is_reported


@pytest.mark.parametrize("kind", [tuple, lambda parts: parts[0], lambda parts: {"x": parts[0]}])
def test_elements_keep_their_structure_where_their_number_is_unknown(kind):
    whole = tf.data.Dataset.range(5).map(lambda i: kind((i,))).filter(lambda *each: True)
    share = Group(1, 2).shard(whole)
    assert share.element_spec == whole.element_spec
    assert [tf.nest.flatten(each)[0].numpy() for each in share] == [1, 3]


def test_lists_are_dealt_out_and_what_has_no_rows_is_named():
    words, numbers = ["a.png", "b.png", "c.png", "d.png"], range(4)
    assert Group(1, 2).shard((words, numbers, None)) == (["b.png", "d.png"], range(1, 4, 2), None)
    assert Group(0, 2).shard([1, 2, 3, 4]) == [1, 3]
    by_name = collections.defaultdict(list, x=words)
    assert Group(1, 2).shard(by_name) == {"x": ["b.png", "d.png"]}
    ragged = tf.ragged.constant([[1], [2, 3], [4], []])
    assert Group(1, 2).shard(ragged).to_list() == [[2, 3], []]
    for data, what in [
        ([[1, 2], [3, 4]], "a list of lists"),
        ((words, 5), "int"),
        ([Path("a"), Path("b")], "PosixPath"),
        ((i for i in numbers), "generator"),
        ("abc", "str"),
    ]:
        for size in (1, 2):
            with pytest.raises(TypeError, match=f"shard: cannot deal out {what}; allowed are"):
                Group(0, size).shard(data)


def test_arrays_are_dealt_out_by_row():
    x, y = np.arange(10).reshape(5, 2), {"label": np.arange(5)}
    rows, labels = Group(1, 2).shard((x, y))
    assert rows.tolist() == [[2, 3], [6, 7]]
    assert labels["label"].tolist() == [1, 3]
    with pytest.raises(ValueError, match=r"must have equally many rows; they have \[4, 5\]"):
        Group(1, 2).shard((x, np.arange(4)))
    with pytest.raises(ValueError, match="the data has 1 row; 2 workers need one each"):
        Group(1, 2).shard(np.arange(1))
