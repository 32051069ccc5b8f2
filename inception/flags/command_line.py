"""From the command line of a program to its config."""

import contextlib
import dataclasses
import functools
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags
from absl.flags import FlagValues

from inception import app
from inception.flags import large_batch, table
from inception.flags.checks import inert_flags, log_inert
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import EvalConfig, TrainConfig
from inception.flags.large_batch import LargeBatch
from inception.flags.table import refuse
from slim.datasets import dataset_factory
from slim.datasets.dataset_info import DatasetInfo
from terngrad.cluster.managed.find import find
from terngrad.cluster.managed.role import ManagedError
from terngrad.layout import suited_settings

# The defaults that follow the data set.
_NET: Callable[[DatasetInfo], str] = lambda info: info.net
_TRAIN_DIR: Callable[[DatasetInfo], str] = lambda info: f"/tmp/{info.name}_train"
_TRAINING = {"net": _NET, "train_dir": _TRAIN_DIR}
_EVALUATION = {
    "net": _NET,
    "subset": lambda info: info.splits[-1],
    "checkpoint_dir": _TRAIN_DIR,
    "eval_dir": lambda info: f"/tmp/{info.name}_eval",
}
# Stands for the data set in the help, where --dataset_name has no default.
_ANY = DatasetInfo("DATASET_NAME", ("test or validation",), None, (None, None, 3), "the data set's")
_ONE_COPY = "a checkpoint holds one copy of the weights, which all towers share."


def define_train(values: FlagValues, dataset_name: str) -> None:
    """Defines the flags of a program that trains.

    Args:
      values: gets the flags.
      dataset_name: the default of --dataset_name, which other defaults follow; "" = it must be set.
    """
    _define(TrainConfig, values, dataset_name, _TRAINING)


def define_eval(values: FlagValues, dataset_name: str) -> None:
    """Defines the flags of a program that evaluates; see `define_train`."""
    _define(EvalConfig, values, dataset_name, _EVALUATION)


def define_distributed(values: FlagValues, dataset_name: str) -> None:
    """Defines the flags of a program that is one process of a training; see `define_train`."""
    define_train(values, dataset_name)
    table.define(LargeBatch, values)
    table.define(ClusterConfig, values)


def _define(
    config_class: type,
    values: FlagValues,
    dataset_name: str,
    following: Mapping[str, Callable[[DatasetInfo], str]],
) -> None:
    if dataset_name:
        info = dataset_factory.get_info(dataset_name)
        defaults = {name: default(info) for name, default in following.items()}
        table.define(config_class, values, dataset_name=dataset_name, **defaults)
    else:
        shown = {name: default(_ANY) for name, default in following.items()}
        shown["dataset_name"] = "must be given"
        table.define(config_class, values, shown, **dict.fromkeys(shown))


def train_config(values: FlagValues) -> TrainConfig:
    """Returns the config of a program that trains; names flags without effect."""
    config = read_train(values)
    say_suited(values)
    if config.save_tower != -1:
        print(f"--save_tower={config.save_tower}: {_ONE_COPY}")
    log_inert(inert(values), values)
    return _with_the_rate_of_adam(config)


def read_train(values: FlagValues) -> TrainConfig:
    """Returns the flags as they were given, and the data set's defaults."""
    _follow_dataset(values, _TRAINING)
    follow_codec(values)
    return table.read(TrainConfig, values)


def follow_codec(values: FlagValues) -> None:
    """Gives the flags that are not set what suits --codec, if that is set."""
    for name, value in _suited(values).items():
        values[name].value = value


def say_suited(values: FlagValues) -> None:
    """Prints what follows --codec."""
    if chosen := [f"--{name}={value}" for name, value in _suited(values).items()]:
        print(f"--codec={values.codec} takes {' '.join(chosen)}.")


def _suited(values: FlagValues) -> dict[str, Any]:
    settings = suited_settings(values.codec)._asdict().items()
    defaults = suited_settings("")._asdict()
    return {
        name: value
        for name, value in settings
        if value != defaults[name] and not values[name].present
    }


def distributed_config(values: FlagValues) -> tuple[TrainConfig, LargeBatch]:
    """Returns the configs of one process of a training; names flags without effect."""
    config = dataclasses.replace(train_config(values), save_interval_secs=values.save_interval_secs)
    return config, table.read(LargeBatch, values)


def inert(values: FlagValues) -> dict[str, str]:
    """Flags that have no effect in a program that trains, with the reason."""
    config = read_train(values)
    effective = _with_the_rate_of_adam(config)
    found = inert_flags(effective)
    if effective != config:
        found["learning_rate_decay_type"] = "--optimizer=adam: its learning rate stays fixed"
    if "job_name" in values:
        found |= table.read(ClusterConfig, values).inert_flags
        if values.job_name == "worker":
            found |= large_batch.inert_flags(table.read(LargeBatch, values))
    return found


def _with_the_rate_of_adam(config: TrainConfig) -> TrainConfig:
    is_adam = config.optimizer == "adam"
    return dataclasses.replace(config, learning_rate_decay_type="fixed") if is_adam else config


def eval_config(values: FlagValues) -> EvalConfig:
    """Returns the config of a program that evaluates."""
    _follow_dataset(values, _EVALUATION)
    config = table.read(EvalConfig, values)
    if config.tower != -1:
        print(f"--tower={config.tower}: {_ONE_COPY}")
    log_inert_of_evaluation(values)
    return config


def log_inert_of_evaluation(values: FlagValues) -> None:
    """Names flags without effect in a program that evaluates, slim's too."""
    if values.run_once:
        log_inert(dict.fromkeys(("eval_interval_secs", "max_steps"), "--run_once"), values)


def cluster_config(
    values: FlagValues,
    environment: Mapping[str, str],
    config_class: type[ClusterConfig] = ClusterConfig,
) -> ClusterConfig:
    """Returns which process this is: by its flags, then with --cluster=auto by its environment."""
    if values.cluster == "auto":
        try:
            given = values.num_ps_tasks, values.worker_timeout_secs, values.network_interface
            role = find(environment, *given)
        except ManagedError as error:
            raise refuse("cluster", "auto", str(error)) from None
        print(f"--cluster=auto found {role}.", flush=True)
        for name, value in role.settings.items():
            if not values[name].present:
                values[name].value = value
    return table.read(config_class, values)


def _follow_dataset(
    values: FlagValues, following: Mapping[str, Callable[[DatasetInfo], str]]
) -> None:
    """Gives flags that have no value the default that the data set has for them."""
    name = values.dataset_name
    if not name:
        raise refuse(
            "dataset_name", "", f"must be given; allowed: {', '.join(dataset_factory.DATASETS)}"
        )
    with table.naming("dataset_name", name):
        info = dataset_factory.get_info(name)
    for flag, default in following.items():
        if values[flag].value is None:
            values[flag].value = default(info)


class _Call(NamedTuple):
    """The arguments that a program passes to `app.run`."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def flags_of(program: str) -> flags.FlagValues:
    """Returns the flags of a program, none of them parsed.

    Args:
      program: its module, such as "inception.mnist_train".

    Raises:
      ValueError: there is no such module, or it does not call `app.run`.
    """
    values = flags.FlagValues()
    _call_of(program).args[1](values)
    return values


def positional_of(program: str) -> Sequence[str]:
    """Returns the flags of a program that may be given by their values alone."""
    return _call_of(program).kwargs.get("positional", ())


@functools.cache
def _call_of(program: str) -> _Call:
    with _noting_calls() as calls:
        try:
            runpy.run_module(program, run_name="__main__")
        except ImportError as error:
            raise ValueError(f"there is no program {program} ({error})") from None
        except SystemExit:
            pass  # it parses its arguments itself
    if not calls:
        raise ValueError(f"{program} defines no flags by app.run")
    return calls[0]


@contextlib.contextmanager
def _noting_calls() -> Iterator[list[_Call]]:
    """Replaces `app.run` in the block by a function that records its arguments."""
    calls: list[_Call] = []
    run = app.run
    app.run = lambda *args, **kwargs: calls.append(_Call(args, kwargs))
    try:
        yield calls
    finally:
        app.run = run
