"""The settings that decide the result of a training, as its checkpoints store them.

A training that is restarted with other settings continues, but with another result.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

import tensorflow as tf

from inception.flags.checks import inert_flags
from inception.flags.configs import EvalConfig, TrainConfig
from inception.flags.table import refuse
from inception.training.problem import input_settings, net_settings
from slim.datasets import records
from slim.datasets.dataset_factory import Dataset
from slim.nets import catalog
from terngrad.layout import EXACT, codec_of
from terngrad.training import checkpoints

# Settings that may change between two starts without changing a bit of the result.
_WITHOUT_EFFECT = {
    "bucket_elements",
    "checkpoint_exclude_scopes",
    "data_dir",  # only the records count
    "fine_tune",
    "ignore_missing_vars",
    "keep_checkpoints",
    "log_device_placement",
    "log_every_n_steps",
    "max_steps",
    "num_inter_threads",
    "num_nodes",  # stored as the resolved number where it is -1
    "num_preprocess_threads",
    "pretrained_model_checkpoint_path",
    "profile_steps",
    "save_interval_secs",
    "save_iter",
    "save_summaries_secs",
    "save_tower",
    "train_dir",
    "use_encoding",
}


def describe(
    config: TrainConfig,
    dataset: Dataset | None,
    workers: int = 1,
    batches_per_step: int = 0,
    own: Mapping[str, object] = MappingProxyType({}),
) -> str:
    """Returns the settings as a JSON object.

    Args:
      config: holds the settings.
      dataset: None stands for synthetic images.
      workers: number of workers.
      batches_per_step: number of batches that make a step; 0 = one from each worker.
      own: settings that only the training's kind has.
    """
    ignored = _WITHOUT_EFFECT | inert_flags(config).keys() | (set() if config.codec else {"codec"})
    if config.is_coded and config.sum_codec != EXACT:  # blocks of a bucket share a scale
        ignored -= {"bucket_elements"}
    settings = {k: v for k, v in dataclasses.asdict(config).items() if k not in ignored}
    settings |= net_settings(config)._asdict() | input_settings(config.net, settings)._asdict()
    settings["num_nodes"] = config.nodes
    settings["workers"] = workers
    settings["batches_per_step"] = batches_per_step or workers
    settings["data_dir"] = _records(dataset)
    if config.learning_rate_decay_type == "polynomial" and not config.polynomial_over_epochs:
        settings["max_steps"] = config.max_steps
    return json.dumps(settings | dict(own), sort_keys=True)


def configuration(config: TrainConfig, workers: int) -> dict[str, str]:
    """Returns, by name, the settings that must be equal on all workers of a training."""
    common = json.loads(describe(config, None, workers))
    common |= {"max_steps": config.max_steps, "tensorflow": tf.version.VERSION}
    # These change what is sent, though not the result.
    on_the_wire = {"bucket_elements", "use_encoding"} - inert_flags(config).keys()
    common |= {name: getattr(config, name) for name in sorted(on_the_wire)}
    return {name: json.dumps(value) for name, value in common.items()}


def data_configuration(dataset: Dataset | None, split_data: bool) -> dict[str, str]:
    """Returns what the data adds to `configuration`."""
    configuration = {"split_data": str(split_data)}
    if split_data:
        configuration["data_dir"] = _records(dataset)
    if split_data and dataset:
        digest = records.sample_digest(dataset.files)
        configuration["data_dir (start and end of its files)"] = f"SHA-256 {digest}"
    return configuration


def settings_of_checkpoint(path: str) -> dict[str, object]:
    """Returns the settings that a checkpoint was written with, by name; none if it has none.

    Raises:
      ValueError: the checkpoint is not readable.
    """
    return _stored(checkpoints.settings_of(path))


def check_net(path: str, net: str) -> None:
    """Raises ValueError if a checkpoint is of another net; nets may share names and shapes."""
    there = settings_of_checkpoint(path).get("net", net)
    if catalog.get_spec(there) is not catalog.get_spec(net):
        raise ValueError(f"{path} holds a net {there}, --net is {net}")


def with_input_of_checkpoint(path: str, config: EvalConfig) -> EvalConfig:
    """Returns `config` with a checkpoint's image size and preprocessing where it leaves them open.

    Prints where these are not the net's own, and where `config` gives others. A checkpoint of an
    earlier version may not say what it was trained with. The same for the labels' offset, but no
    other can be given.

    Raises:
      ValueError: the checkpoint was trained with another --labels_offset.
    """
    stored, given, taken = settings_of_checkpoint(path), vars(config), {}
    trained, own = (input_settings(config.net, each)._asdict() for each in (stored, {}))
    for name in (name for name in trained if name in stored):
        what, there = name.removesuffix("_name").replace("_", " "), trained[name]
        if given[name] in (-1, None, ""):
            taken[name] = there
            if there != own[name]:
                why = f"as {path} was trained, not with the net's own {own[name]}"
                print(f"Evaluating with {what} {there}, {why}.", flush=True)
        elif given[name] != there:
            why = f"as the flag says; {path} was trained with {there}"
            print(f"Evaluating with {what} {given[name]}, {why}.", flush=True)
    offset = stored.get("labels_offset", config.labels_offset or 0)
    if config.labels_offset not in (None, offset):
        why = f"{path} was trained with --labels_offset={offset}"
        raise refuse("labels_offset", config.labels_offset, why)
    return dataclasses.replace(config, labels_offset=offset, **taken)


@contextlib.contextmanager
def naming_image_size(path: str, config: TrainConfig | EvalConfig) -> Iterator[None]:
    """Adds the sizes of the images to a ValueError of the block, if the checkpoint's was another.

    The shapes of some nets' variables depend on it.
    """
    try:
        yield
    except ValueError as error:
        stored = settings_of_checkpoint(path)
        size, there = (input_settings(config.net, s).image_size for s in (vars(config), stored))
        if "image_size" not in stored or there == size:
            raise
        text = f"{error} It was trained with images of {there} pixels, --image_size is {size}."
        raise ValueError(text) from None


def differences(before: str, now: str) -> str:
    """Returns the settings that differ, as `batch_size = 16 (was 32), seed = 1 (was 2)`.

    Args:
      before: an earlier result of `describe`, perhaps of a version with fewer settings; or "".
      now: the present result of `describe`.
    """
    old, new = _stored(before), json.loads(now)
    of_input = input_settings(new["net"], old)._asdict()  # earlier versions stored them open
    old |= {name: of_input[name] for name in of_input.keys() & old.keys()}
    if old:
        named = old.keys() | new.keys()  # what is not noted is the default
        old, new = ({**_defaults(named, each), **each} for each in (old, new))
    changed = [name for name in new if name in old and new[name] != old[name]]
    return ", ".join(f"{name} = {new[name]} (was {old[name]})" for name in changed)


def _defaults(named: Collection[str], settings: Mapping[str, object]) -> dict[str, object]:
    """Returns those of `named` that are noted only where a flag gives them."""
    defaults = {
        "codec": codec_of(settings.get("grad_bits", 32)),
        "cross_replica_sync": True,
    }
    return {name: value for name, value in defaults.items() if name in named}


def _stored(text: str | None) -> dict[str, object]:
    """Returns stored settings; versions that left alexnet's preprocessing open gave it VGG's."""
    settings = json.loads(text or "{}")
    if settings.get("net") == "alexnet" and not settings.get("preprocessing_name"):
        settings["preprocessing_name"] = "vgg"
    return settings


def _records(dataset: Dataset | None) -> str:
    if dataset is None:
        return "synthetic images"
    size = sum(map(os.path.getsize, dataset.files))
    return f"{dataset.num_examples} images, {size} bytes, {len(dataset.files)} files"
