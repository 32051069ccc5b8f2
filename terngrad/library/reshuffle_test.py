"""A new order of all data in each epoch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terngrad.keras
from terngrad.library import reshuffle
from terngrad.library.group import Group

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
    first = reshuffle.order(6, 5, 0)
    assert first.tolist() == [4, 3, 5, 2, 0, 1], "saved trainings go on with this order"
    assert sorted(first) == list(range(6))
    assert reshuffle.order(6, 5, 1).tolist() != first.tolist() != reshuffle.order(6, 6, 0).tolist()
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
