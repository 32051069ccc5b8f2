"""Checks that the workers of `fit` train on shares of the same data, and validate on equal data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from terngrad.library.data_digest import digest_of_whole
from terngrad.library.group import Group
from terngrad.library.keras import program_warnings


def compare_data(group: Group, given: Mapping[str, Any]) -> None:
    """Warns, on the chief, of data that workers must not have given to `shard` and `fit`.

    Args:
      group: the processes, which all call this.
      given: the arguments of `fit`: x, y, sample_weight, validation_data, validation_split.
    """
    validation = None if given.get("validation_split") else given.get("validation_data")
    own = {
        "seeds": group.seeds_of_shuffles,
        "shards": group.digests_of_data,
        "shard calls": group.shard_calls,
        "fit": _digest(given.get("x"), given.get("y"), given.get("sample_weight")),
        "validation": _digest(validation),
    }
    rows = group.all_gather_object(own, what="the start of fit")
    if group.is_chief:
        for problem in problems(rows):
            program_warnings.warn(problem)
    group.seeds_of_shuffles.clear()  # a later fit has data of its own
    group.digests_of_data.clear()


def problems(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields what is wrong with the data of all workers, and the remedy."""
    if are_other_seeds([row["seeds"] for row in rows]):
        yield (
            "data sets were shuffled before group.shard, with another seed on each worker, so "
            "some elements are seen twice and others never: shuffle after shard, or give all "
            "the same seeds, of tf.random.set_seed and of shuffle (or, for example, "
            "image_dataset_from_directory(..., seed=1))"
        )
    elif (call := _other_shard([row["shards"] for row in rows])) is not None:
        yield (
            f"the workers gave group.shard (call {call + 1}) other data, the same in another "
            "order, or another reshuffle, so some rows are seen twice and others never: call shard "
            "before shuffling, let shard(..., reshuffle=1) shuffle, or shuffle and split with the "
            "same seed on all, as np.random.default_rng(1) and train_test_split(random_state=1) do"
        )
    if rows[0]["fit"] and len({row["fit"] for row in rows}) == 1:
        yield (
            "all workers train on the same data, instead of a share each: give fit what "
            "group.shard(data) returns; call it before shuffle and batch"
        )
    has_one_shard = all(row["shard calls"] < 2 for row in rows)
    found = [row["validation"] for row in rows]
    if has_one_shard and all(found) and len(set(found)) > 1:
        yield (
            "the workers validate on other data, or on the same in another order, so a row may be "
            "seen in training by one and in validation by another: split with the same seed on "
            "all, then give all the same validation data or group.shard(validation data)"
        )


def are_other_seeds(seeds: Sequence[list]) -> bool:
    """Returns whether processes that shuffled equally often did so with other seeds."""
    return len({len(own) for own in seeds}) == 1 and any(own != seeds[0] for own in seeds)


def _other_shard(shards: Sequence[Sequence[str]]) -> int | None:
    """Returns which call of `shard` was given other data, if all called it equally often."""
    if len({len(own) for own in shards}) > 1:
        return None
    calls = zip(*shards, strict=True)
    return next((i for i, call in enumerate(calls) if len(set(call)) > 1), None)


def _digest(*parts: Any) -> str:
    given = [part for part in parts if part is not None]
    return digest_of_whole(given[0] if len(given) == 1 else tuple(given)) if given else ""
