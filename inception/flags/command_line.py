"""From the command line of a program to its config."""

import dataclasses
from collections.abc import Mapping

from absl.flags import FlagValues

from inception.flags import table
from inception.flags.checks import inert_flags, tell_inert
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import EvalConfig, TrainConfig
from inception.flags.table import refuse
from terngrad.cluster.managed.find import find
from terngrad.cluster.managed.role import ManagedError

_NET_OF_DATASET = {
    "mnist": "lenet",
    "cifar10": "cifar10_alexnet",
    "imagenet": "alexnet",
    "flowers": "inception_v3",
}
# "images" are the user's own. Like the flowers, they have a labels.txt.
_ALSO_READ = {"flowers": ("images",), "mnist": ("fashion_mnist",)}
_ONE_COPY = "a checkpoint holds one copy of the weights, which all towers share."


def define_train(values: FlagValues, dataset_name: str) -> None:
    """Defines the flags of the program that trains on `dataset_name`."""
    table.define(
        TrainConfig,
        values,
        dataset_name=dataset_name,
        net=_NET_OF_DATASET[dataset_name],
        train_dir=f"/tmp/{dataset_name}_train",
    )


def define_eval(values: FlagValues, dataset_name: str) -> None:
    """Defines the flags of the program that evaluates on `dataset_name`."""
    table.define(
        EvalConfig,
        values,
        dataset_name=dataset_name,
        net=_NET_OF_DATASET[dataset_name],
        subset="test" if dataset_name in ("mnist", "cifar10") else "validation",
        checkpoint_dir=f"/tmp/{dataset_name}_train",
        eval_dir=f"/tmp/{dataset_name}_eval",
    )


def train_config(values: FlagValues, dataset_name: str) -> TrainConfig:
    """Returns the config of the program that trains on `dataset_name`."""
    _check_dataset(values, dataset_name)
    config = table.read(TrainConfig, values)
    if config.save_tower != -1:
        print(f"--save_tower={config.save_tower}: {_ONE_COPY}")
    tell_inert(inert_in_training(config), values)
    return _with_the_rate_of_adam(config)


def inert_in_training(config: TrainConfig) -> dict[str, str]:
    """Flags that have no effect in a program of the suite, with what makes them so."""
    effective = _with_the_rate_of_adam(config)
    decay = {"learning_rate_decay_type": "--optimizer=adam: its learning rate stays fixed"}
    return (decay if effective != config else {}) | inert_flags(effective)


def _with_the_rate_of_adam(config: TrainConfig) -> TrainConfig:
    is_adam = config.optimizer == "adam"
    return dataclasses.replace(config, learning_rate_decay_type="fixed") if is_adam else config


def eval_config(values: FlagValues, dataset_name: str) -> EvalConfig:
    """Returns the config of the program that evaluates on `dataset_name`."""
    _check_dataset(values, dataset_name)
    config = table.read(EvalConfig, values)
    if config.tower != -1:
        print(f"--tower={config.tower}: {_ONE_COPY}")
    return config


def cluster_config(values: FlagValues, environment: Mapping[str, str]) -> ClusterConfig:
    """Returns which process this is: by its flags, then with --cluster=auto by its environment."""
    if values.cluster == "auto":
        try:
            role = find(environment, values.num_ps_tasks, values.worker_timeout_secs)
        except ManagedError as error:
            raise refuse("cluster", "auto", str(error)) from None
        print(f"--cluster=auto found {role}.", flush=True)
        for name, value in role.settings.items():
            if not values[name].present:
                values[name].value = value
    return table.read(ClusterConfig, values)


def _check_dataset(values: FlagValues, dataset_name: str) -> None:
    allowed = (dataset_name, *_ALSO_READ.get(dataset_name, ()))
    if values.dataset_name not in allowed:
        names = " or ".join(allowed)
        raise refuse("dataset_name", values.dataset_name, f"this program reads {names}")
