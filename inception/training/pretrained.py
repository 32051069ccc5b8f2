"""Gives a net weights that it was not trained to here: of this suite, of TF-Slim or of Keras."""

import os
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from inception.flags.configs import TrainConfig
from inception.flags.table import refuse
from inception.training import settings
from slim import pretrained_weights
from slim.datasets import dataset_factory, dataset_info
from slim.nets import catalog
from slim.pretrained_weights import Weights
from terngrad.training import checkpoints

_MAX_NAMES = 5  # names in a message
_SUITE = "a checkpoint of this suite"


def load(config: TrainConfig, variables: Mapping[str, tf.Variable]) -> None:
    """Sets a net's variables to the weights of --pretrained_model_checkpoint_path; logs which.

    Args:
      config: says which file, and which variables keep their initial values.
      variables: all variables of the net, by name.

    Raises:
      ValueError: the file is not readable, or variables are missing in it or have another shape;
        with --ignore_missing_vars, all are missing.
    """
    path = _file(config.pretrained_model_checkpoint_path)
    weights = read(path, config.net, variables)
    fresh, last = _fresh(config, weights, variables), _of_last_layers(config.net, variables)
    if weights.layout == _SUITE:
        _check_origin(path, config, has_fresh_classes=set(last) <= set(fresh))
    wanted = {name: v for name, v in variables.items() if name not in fresh}
    missing = [name for name in wanted if name not in weights.arrays]
    if config.ignore_missing_vars:
        wanted = {name: v for name, v in wanted.items() if name in weights.arrays}
        fresh, missing = fresh + missing, []
        if not wanted:
            raise ValueError(f"{path} ({weights.layout}) holds no variable of {config.net}.")
    _assign(path, config.net, weights, wanted, missing, _way_out(config.net))
    print(f"Succesfully loaded model from {path} to start with.")
    _log_loaded(path, weights, wanted, fresh)


def load_all(path: str, net: str, variables: Mapping[str, tf.Variable]) -> None:
    """Sets all variables of a net to the weights in a file, whichever program wrote it.

    Raises:
      ValueError: the file is not readable, or variables are missing in it or have another shape.
    """
    weights = read(path, net, variables)
    _assign(path, net, weights, variables, [n for n in variables if n not in weights.arrays])


def is_of_suite(path: str) -> bool:
    """Returns whether a file is a checkpoint of this suite; ValueError if it is not readable."""
    return not path.endswith(pretrained_weights.KERAS_ENDINGS) and checkpoints.is_of_suite(path)


def read(path: str, net: str, variables: Mapping[str, tf.Variable]) -> Weights:
    """Reads the weights in a file, whichever program wrote it.

    Raises:
      ValueError: the file is not readable, or its layout is not known.
    """
    if path.endswith(pretrained_weights.KERAS_ENDINGS):
        shapes = {name: tuple(v.shape) for name, v in variables.items()}
        return pretrained_weights.read_keras(path, net, shapes)
    if is_of_suite(path):
        arrays = checkpoints.read_weights(path, averages=False)
        return Weights(_SUITE, arrays)
    with checkpoints.opened(path) as reader:
        return pretrained_weights.read_tf_slim(path, net, reader)


def _file(given: str) -> str:
    """Returns the weight file, or the newest checkpoint if a folder is given."""
    flag = "pretrained_model_checkpoint_path"
    given = given.removesuffix(".index")
    if os.path.isdir(given):
        newest = checkpoints.find(given, print) or _newest_of_tf_slim(given)
        if not newest:
            raise refuse(flag, given, "the folder holds no checkpoint")
        return newest
    if not os.path.isfile(given) and not os.path.isfile(f"{given}.index"):
        raise refuse(flag, given, "there is no such checkpoint, folder or weight file")
    return given


def _newest_of_tf_slim(folder: str) -> str | None:
    """Returns the newest checkpoint of a folder by TensorFlow's state file; None if there is none.

    `tf.train.latest_checkpoint` would take the folder's name for a pattern.
    """
    state = tf.train.get_checkpoint_state(folder)
    path = state.model_checkpoint_path if state else ""
    return path if os.path.isfile(path) or os.path.isfile(f"{path}.index") else None


def _fresh(config: TrainConfig, weights: Weights, names: Iterable[str]) -> list[str]:
    """Returns the variables that keep their initial values.

    Raises:
      ValueError: no variable is in one of --checkpoint_exclude_scopes.
    """
    fresh = set(_heads_not_in(weights, config.net, names))
    if config.fine_tune:
        fresh.update(_of_last_layers(config.net, names))
    for scope in config.checkpoint_exclude_scopes:
        found = [
            n for n in names if n.startswith(pretrained_weights.suite_scope(scope, config.net))
        ]
        if not found:
            layers = ", ".join(dict.fromkeys(name.rpartition("/")[0] for name in names))
            why = f"no variable begins with {scope!r}; layers are {layers}"
            raise refuse("checkpoint_exclude_scopes", config.checkpoint_exclude_scopes, why)
        fresh.update(found)
    return [name for name in names if name in fresh]


def _heads_not_in(weights: Weights, net: str, names: Iterable[str]) -> list[str]:
    """Returns the variables of auxiliary heads of which the file has nothing.

    These heads serve the training only, so nets are published without them, too.
    """
    heads = catalog.get_spec(net).logits_layers[1:]
    scopes = [f"{head.rpartition('/')[0]}/" for head in heads]
    absent = [s for s in scopes if not any(name.startswith(s) for name in weights.arrays)]
    return [name for name in names if name.startswith(tuple(absent))]


def _of_last_layers(net: str, names: Iterable[str]) -> list[str]:
    """Returns the variables of the last layer, and of the last one of each auxiliary head."""
    layers = tuple(f"{layer}/" for layer in catalog.get_spec(net).logits_layers)
    return [name for name in names if name.startswith(layers)]


def _check_origin(path: str, config: TrainConfig, *, has_fresh_classes: bool) -> None:
    """Raises ValueError if a checkpoint of the suite is of another net or knows other classes."""
    if not config.ignore_missing_vars:  # with it the user accepts that the nets differ
        settings.check_net(path, config.net)
    if has_fresh_classes or config.benchmark_mode:
        return
    names = dataset_factory.get_class_names(config.dataset_name, config.data_dir)
    try:
        dataset_info.check_labels(os.path.dirname(path), names, f"the records of {config.data_dir}")
    except ValueError as error:
        raise ValueError(f"{error}{_way_out(config.net)}") from None


def _way_out(net: str) -> str:
    """Returns the end of an error about the last layer: a flag that all programs have."""
    layers = ",".join(catalog.get_spec(net).logits_layers)
    return f"; with --checkpoint_exclude_scopes={layers} the last layer starts afresh"


def _assign(
    path: str,
    net: str,
    weights: Weights,
    wanted: Mapping[str, tf.Variable],
    missing: Sequence[str],
    way_out: str = "",
) -> None:
    """Sets the wanted variables; raises ValueError that says which of them differ, and how.

    If these are only of the last layer, the error ends with `way_out`.
    """
    differ = [
        f"{name} is {_size(weights.arrays[name].shape)} there and {_size(v.shape)} here"
        for name, v in wanted.items()
        if name in weights.arrays and weights.arrays[name].shape != tuple(v.shape)
    ]
    faults = [f"it lacks {_some(missing)}"] if missing else []
    faults += [_some(differ, "; ")] if differ else []
    if faults:
        only_last = len(_of_last_layers(net, [*missing, *differ])) == len(missing) + len(differ)
        advice = way_out if only_last else ""
        raise ValueError(
            f"{path} ({weights.layout}) does not fit {net}: {'; '.join(faults)}{advice}."
        )
    for name, variable in wanted.items():
        variable.assign(weights.arrays[name])


def _log_loaded(
    path: str, weights: Weights, loaded: Mapping[str, tf.Variable], fresh: Sequence[str]
) -> None:
    """Logs where every variable of the net comes from, and which of the file are left out."""
    unused = [name for name in weights.arrays if name not in loaded and name not in fresh]
    left_out = [*weights.left_out, *unused]
    line = f"{len(loaded)} variables come from {weights.layout}"
    line += f"; {len(fresh)} start afresh: {_some(fresh)}" if fresh else ""
    line += f"; left out: {', '.join(left_out)}" if left_out else ""
    print(f"{line}.", flush=True)


def _size(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _some(names: Sequence[str], between: str = ", ") -> str:
    more = len(names) - _MAX_NAMES
    return between.join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
