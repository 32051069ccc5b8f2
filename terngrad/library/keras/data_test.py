"""Whether workers have the shares of the same data: what is reported, and what is not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from terngrad.library.data_digest import digest, digest_of_whole
from terngrad.library.group import Group
from terngrad.library.keras.data import _digest, are_other_seeds, compare_data, problems
from terngrad.testing.threads import on_all

X = np.random.default_rng(1).normal(size=(40, 3))
Y = list(range(40))
ORDER = np.random.default_rng(2).permutation(40)
SLICES = tf.data.Dataset.from_tensor_slices
MIXED = X[ORDER], [Y[i] for i in ORDER]


def row(shards=(), fit=None, validation=None, seeds=()):
    """Returns what a worker tells at the start of fit."""
    group = Group(0, 2)
    for data in shards:
        group.shard(data)
    return {
        "seeds": list(seeds),
        "shards": group.digests_of_data,
        "shard calls": group.shard_calls,
        "fit": _digest(*(fit if isinstance(fit, tuple) else (fit,))),
        "validation": _digest(validation),
    }


@pytest.mark.parametrize(
    ("mine", "others"),
    [
        ((X, Y), MIXED),
        (X, X + 1),
        ({"a": X, "b": Y}, {"a": X[::-1], "b": Y}),
        (Y, MIXED[1]),
        (["a/1.png", "a/2.png"], ["a/2.png", "a/1.png"]),
        (SLICES((X, Y)).batch(4), SLICES(MIXED).batch(4)),
        (SLICES(X).shuffle(9, seed=1).map(lambda x: x), SLICES(X[ORDER]).shuffle(9, seed=1)),
        (tf.data.Dataset.from_tensors(X).unbatch(), tf.data.Dataset.from_tensors(-X).unbatch()),
    ],
)
def test_data_in_another_order_differ_and_equal_data_do_not(mine, others):
    same, other = (list(problems([row([mine]), row([each])])) for each in (mine, others))
    assert same == []
    (reported,) = other
    assert "group.shard (call 1) other data, the same in another order" in reported


class Odd:
    """Looks like an array, and cannot be read like one."""

    shape = (4, 2)

    def __getitem__(self, rows):
        raise RuntimeError


def test_data_that_cannot_be_read_do_no_harm():
    assert digest(Odd()) == digest((Odd(), None)) == ""
    assert digest(tf.data.TextLineDataset(["/absent"])) == ""


def test_hosts_may_have_their_files_in_other_folders():
    assert digest(["/a/1.png", "/a/2.png"]) == digest(["/b/c/1.png", "/b/c/2.png"]) != ""
    files = [[f"/{folder}/{i}" for i in range(9)] for folder in "ab"]
    assert digest(tf.data.TFRecordDataset(files[0])) == digest(SLICES(files[1])) != ""


def test_nothing_is_drawn_from_shuffles_and_generators():
    drawn = []

    def numbers():
        drawn.append(1)
        yield 1

    spec = tf.TensorSpec((), tf.int64)
    assert digest(tf.data.Dataset.from_generator(numbers, output_signature=spec)) == ""
    assert not drawn
    shuffled = tf.data.Dataset.range(9).shuffle(9, seed=1)
    again = tf.data.Dataset.range(9).shuffle(9, seed=1)
    digest(shuffled)
    assert [int(i) for i in shuffled] == [int(i) for i in again]
    assert digest(SLICES(["absent"]).flat_map(tf.data.TextLineDataset)) == ""
    assert digest(tf.data.TFRecordDataset(["/absent/a", "/absent/b"])) != ""


def test_a_missing_shard_is_reported():
    for data in ((X, Y), (X,), (SLICES((X, Y)).shuffle(40, seed=3).batch(4).prefetch(1),)):
        (reported,) = problems([row(fit=data), row(fit=data)])
        assert "all workers train on the same data, instead of a share each" in reported
    shares = [Group(rank, 2).shard((X, Y)) for rank in range(2)]
    sets = [Group(rank, 2).shard(SLICES((X, Y))).batch(4) for rank in range(2)]
    reshuffled = [Group(rank, 2).shard((X, Y), reshuffle=1).batch(4) for rank in range(2)]
    slices = [SLICES(each).batch(4) for each in shares]
    for mine, other in (shares, sets, reshuffled, slices):
        assert list(problems([row(fit=mine), row(fit=other)])) == []


def test_own_shards_generators_and_constant_data_have_no_digest():
    drawn = []

    class Batches(keras.utils.PyDataset):
        """Gives a batch."""

        def __getitem__(self, index):
            drawn.append(index)

    for data in (
        np.ones((4, 3)),
        SLICES(X).shard(2, 1),
        SLICES(X).filter(lambda x: True).batch(2),
        SLICES(["a", "b"]).interleave(lambda name: tf.data.Dataset.range(3).shard(2, 1)),
        Batches(),
        (i for i in X),
        None,
    ):
        assert digest_of_whole(data) == ""
    assert not drawn


def test_other_validation_data_are_reported_and_shares_and_the_chiefs_own_are_not():
    both = [X, Y]
    mixed = row([X], validation=(MIXED[0], MIXED[1]))
    (reported,) = problems([row([X], validation=(X, Y)), mixed])
    assert "the workers validate on other data, or on the same in another order" in reported
    assert list(problems([row([X], validation=(X, Y)), row([X])])) == []
    shares = [Group(rank, 2).shard((X, Y)) for rank in range(2)]
    assert list(problems([row(both, validation=each) for each in shares])) == []


def test_shares_of_validation_data_are_not_reported_at_a_second_fit_either(recwarn):
    def fit_twice(group):
        train, validation = group.shard(X), group.shard((X, Y))
        for _ in range(2):
            compare_data(group, {"x": train, "validation_data": validation})

    assert on_all(2, fit_twice) == [None, None]
    assert not recwarn.list


def test_other_seeds_of_as_many_shuffles_differ():
    seeds = []
    for seed in (1, 2):
        group = Group(0, 2)
        group.shard(tf.data.Dataset.range(4).shuffle(4, seed=seed).map(lambda i: i))
        seeds.append(group.seeds_of_shuffles)
    assert are_other_seeds(seeds)
    assert not are_other_seeds([seeds[0], seeds[0]])
    assert not are_other_seeds([seeds[0], []]), "one may deal out more than the others"
    (reported,) = problems([row(seeds=each) for each in seeds])
    assert "with another seed on each worker" in reported
