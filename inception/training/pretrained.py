"""Starts a training from weights: of this suite, of TF-Slim or of Keras."""

import os
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from inception.flags.configs import TrainConfig
from inception.flags.table import refuse
from slim.nets import nets_factory
from slim.weights import keras_files, tf_slim
from slim.weights.found import Weights
from terngrad.training import checkpoints

_TOLD = 5  # names in a message


def load(config: TrainConfig, variables: Mapping[str, tf.Variable]) -> None:
    """Sets a net's variables to the weights of --pretrained_model_checkpoint_path; tells which.

    Args:
      config: says which file, and which variables keep their initial values.
      variables: all variables of the net, by name.

    Raises:
      ValueError: the file is not readable, or variables are missing in it or have another shape.
    """
    path = _file(config.pretrained_model_checkpoint_path)
    weights = read(path, config.net, variables)
    fresh = _fresh(config, variables)
    wanted = {name: v for name, v in variables.items() if name not in fresh}
    missing = [name for name in wanted if name not in weights.arrays]
    if config.ignore_missing_vars:
        wanted = {name: v for name, v in wanted.items() if name in weights.arrays}
        fresh, missing = fresh + missing, []
    _check(path, config, weights, wanted, missing)
    for name, variable in wanted.items():
        variable.assign(weights.arrays[name])
    print(f"Succesfully loaded model from {path} to start with.")
    _tell(path, weights, wanted, fresh)


def read(path: str, net: str, variables: Mapping[str, tf.Variable]) -> Weights:
    """Reads the weights in a file, whichever program wrote it.

    Raises:
      ValueError: the file is not readable, or its layout is not known.
    """
    if path.endswith(keras_files.ENDINGS):
        shapes = {name: tuple(v.shape) for name, v in variables.items()}
        return keras_files.read(path, net, shapes)
    if checkpoints.is_of_suite(path):
        arrays = checkpoints.read_weights(path, averages=False)
        return Weights("a checkpoint of this suite", arrays)
    return tf_slim.read(path, net)


def _file(given: str) -> str:
    """Returns the weight file, or the newest checkpoint if a folder is given."""
    flag = "pretrained_model_checkpoint_path"
    if os.path.isdir(given):
        newest = checkpoints.latest_checkpoint(given) or tf.train.latest_checkpoint(given)
        if not newest:
            raise refuse(flag, given, "the folder holds no checkpoint")
        return newest
    if not os.path.isfile(given) and not os.path.isfile(f"{given}.index"):
        raise refuse(flag, given, "there is no such checkpoint, folder or weight file")
    return given


def _fresh(config: TrainConfig, names: Iterable[str]) -> list[str]:
    """Returns the variables that keep their initial values."""
    scopes = config.checkpoint_exclude_scopes
    if config.fine_tune:
        scopes += tuple(f"{layer}/" for layer in _last_layers(config.net))
    return [name for name in names if name.startswith(scopes)] if scopes else []


def _last_layers(net: str) -> tuple[str, ...]:
    return nets_factory.get_spec(net).logits_layers


def _check(
    path: str,
    config: TrainConfig,
    weights: Weights,
    wanted: Mapping[str, tf.Variable],
    missing: Sequence[str],
) -> None:
    """Raises ValueError that says which variables differ, and how."""
    differ = [
        f"{name} is {_size(weights.arrays[name].shape)} there and {_size(v.shape)} here"
        for name, v in wanted.items()
        if name in weights.arrays and weights.arrays[name].shape != tuple(v.shape)
    ]
    faults = [f"it lacks {_some(missing)}"] if missing else []
    faults += [_some(differ, "; ")] if differ else []
    if not faults:
        return
    last = _last_layers(config.net)
    only_last = all(name.startswith(last) for name in missing) and all(
        line.startswith(last) for line in differ
    )
    advice = "; with --fine_tune=True the last layer starts afresh" if only_last else ""
    raise ValueError(
        f"{path} ({weights.layout}) does not fit {config.net}: {'; '.join(faults)}{advice}."
    )


def _tell(
    path: str, weights: Weights, loaded: Mapping[str, tf.Variable], fresh: Sequence[str]
) -> None:
    """Accounts for every variable of the net and of the file."""
    unused = [name for name in weights.arrays if name not in loaded and name not in fresh]
    left_out = [*weights.left_out, *unused]
    line = f"{len(loaded)} variables come from {weights.layout}"
    line += f"; {len(fresh)} start afresh: {_some(fresh)}" if fresh else ""
    line += f"; left out: {_some(left_out)}" if left_out else ""
    print(f"{line}.", flush=True)


def _size(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _some(names: Sequence[str], between: str = ", ") -> str:
    more = len(names) - _TOLD
    return between.join(names[:_TOLD]) + (f" and {more} more" if more > 0 else "")
