"""Shares of data are equal for all, what is left out is logged, and epochs differ in order."""

import collections
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed

import terngrad.keras
from terngrad.library import shard
from terngrad.library.group import Group


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


X = np.arange(11)


def passes(dataset, count):
    return [[int(tf.nest.flatten(each)[0]) for each in dataset] for _ in range(count)]


def test_in_each_epoch_all_rows_are_dealt_out_anew_and_no_row_is_seen_twice():
    groups = [Group(rank, 3) for rank in range(3)]
    shares = [group.shard((X, {"y": -X}), reshuffle=5) for group in groups]
    assert [int(share.cardinality()) for share in shares] == [3, 3, 3]
    epochs = list(zip(*(passes(share, 2) for share in shares), strict=True))
    for epoch in epochs:
        rows = [row for share in epoch for row in share]
        assert len(set(rows)) == 9
        assert set(rows) <= set(X.tolist())
    assert epochs[0] != epochs[1]
    for x, other in shares[0]:
        assert int(x) == -int(other["y"])


def test_the_order_is_a_function_of_the_seed_and_the_epoch_and_stays_so():
    first = shard.order(6, 5, 0)
    assert first.tolist() == [4, 3, 5, 2, 0, 1], "saved trainings go on with this order"
    assert sorted(first) == list(range(6))
    assert shard.order(6, 5, 1).tolist() != first.tolist() != shard.order(6, 6, 0).tolist()
    group = Group()
    share = group.shard(X, reshuffle=5)
    found = passes(share, 3)
    group.set_epoch(1)
    assert passes(share, 2) == found[1:]


def test_workers_and_nodes_of_one_process_see_the_same_rows():
    two = [passes(Group(rank, 2).shard(X[:8], reshuffle=1), 1)[0] for rank in range(2)]
    (one,) = passes(Group().shard(X[:8], reshuffle=1), 1)
    assert [one[node::2] for node in range(2)] == two


@pytest.mark.parametrize("is_known", [True, False])
def test_a_data_set_is_read_into_memory(is_known):
    whole = tf.data.Dataset.from_tensor_slices({"x": X}).map(lambda each: each)
    whole = whole if is_known else whole.filter(lambda each: True)
    share = Group(1, 2).shard(whole, reshuffle=2)
    assert share.element_spec == whole.element_spec
    assert passes(share, 2) == passes(Group(1, 2).shard({"x": X}, reshuffle=2), 2)


def test_lists_become_tensors_and_wrong_uses_are_named():
    share = Group(0, 2).shard((["b", "a"], range(2)), reshuffle=1)
    assert [(x.numpy(), int(y)) for x, y in share] in ([(b"b", 0)], [(b"a", 1)])
    ragged = tf.data.Dataset.range(1, 4).map(tf.range)
    for data, seed, error, why in [
        (X, "1", TypeError, "reshuffle is '1'; allowed are integers from 0"),
        (X, -1, ValueError, "reshuffle is -1; allowed are integers from 0"),
        ((X, None), 1, ValueError, "cannot hold None: leave it out"),
        ((X, X[1:]), 1, ValueError, "must have equally many rows"),
        (tf.data.Dataset.range(3).repeat(), 1, ValueError, "call shard before repeat"),
        (tf.data.Dataset.range(0), 1, ValueError, "has 0 elements"),
        (ragged, 1, ValueError, "needs elements of equal shapes: call shard before batch"),
        ((i for i in X), 1, TypeError, "cannot deal out generator"),
    ]:
        with pytest.raises(error, match=why):
            Group(0, 2).shard(data, reshuffle=seed)


class Seen(keras.callbacks.Callback):
    """Notes the sums of the weights after each epoch."""

    def __init__(self):
        super().__init__()
        self.weights = []

    def on_epoch_end(self, epoch, logs=None):
        """Notes them."""
        self.weights.append(self.model.get_weights()[0].tolist())


@pytest.mark.parametrize("steps", [None, 2])
@pytest.mark.parametrize("is_built", [True, False])
def test_fit_gives_each_epoch_its_order_also_where_it_begins_later(steps, is_built):
    """Although Keras draws a batch more, to build a model or ahead of an epoch."""
    rows = np.arange(8.0, dtype="float32")[:, None]
    found = []
    for parts in ([(0, 3)], [(0, 1), (1, 3)]):
        group = Group()
        data = group.shard((rows, rows * rows), reshuffle=3).batch(4)
        data = data if steps is None else data.repeat()
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(1)])
        if is_built:
            model.build((None, 1))
        optimizer = terngrad.keras.distribute(
            keras.optimizers.SGD(0.01), group, gradients="float32"
        )
        model.compile(optimizer, "mse", run_eagerly=True)
        seen = Seen()
        for first, last in parts:
            model.fit(
                data,
                initial_epoch=first,
                epochs=last,
                steps_per_epoch=steps,
                verbose=0,
                callbacks=[seen, terngrad.keras.DistributedCallback(group)],
            )
        found.append(seen.weights)
    assert found[0] == found[1]
