"""Checks nets, codecs, data sets and folders that flags name, before TensorFlow is loaded."""

import glob
import os
import re
import tempfile

from inception.flags.configs import EvalConfig, TrainConfig
from inception.flags.table import naming, refuse
from inception.training.problem import check_net, problem_of
from slim.datasets import dataset_factory
from slim.datasets.files import check_readable
from slim.nets import catalog
from terngrad.codecs import registry

_PART = re.compile(r"\.data-\d{5}-of-\d{5}$")  # of a checkpoint
_NO_FOLDER = "must name a folder"


def check_training(config: TrainConfig, *, is_alone: bool = True, is_chief: bool = True) -> None:
    """Raises ValueError, naming the flag, for what would fail once TensorFlow is loaded.

    Makes the chief's --train_dir.

    Args:
      config: what to train.
      is_alone: whether the training has no other workers; then one that is finished reads nothing.
      is_chief: whether this process is known to write to --train_dir.
    """
    check_train_dir(config)
    check_net(config)
    if why := config.codec and registry.why_unknown(config.codec):
        raise refuse("codec", config.codec, why)
    last = _last_step(config.train_dir)
    if is_alone and config.max_steps and last >= config.max_steps:
        return
    if not config.benchmark_mode:
        _check_data_dir(config)
    problem_of(config)
    if not config.benchmark_mode:
        _check_records(config)
    _warn_of_small_images(config)
    if is_chief and last < 0:
        _check_pretrained(config)
    if is_chief:
        check_writable("train_dir", config.train_dir)


def check_train_dir(config: TrainConfig) -> None:
    """Raises ValueError unless --train_dir names a folder; a ps writes there, too."""
    if not config.train_dir:
        raise refuse("train_dir", "", _NO_FOLDER)


def check_evaluation(config: EvalConfig) -> None:
    """Raises ValueError, naming the flag, for what would fail once TensorFlow is loaded."""
    for name in ("checkpoint_dir", "eval_dir"):
        if not getattr(config, name):
            raise refuse(name, "", _NO_FOLDER)
    check_net(config)
    _check_data_dir(config)
    problem_of(config)
    _check_records(config)
    if config.run_once:
        check_checkpoint(config.checkpoint_dir)
    check_writable("eval_dir", config.eval_dir)


def check_writable(flag: str, folder: str) -> None:
    """Makes a folder, unless it exists; raises ValueError if no file can be made in it."""
    if folder == "~" or folder.startswith("~/"):
        why = f"bash leaves ~ as it is within --{flag}=~; write $HOME in its place"
        raise refuse(flag, folder, why)
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise refuse(flag, folder, f"is not writable ({error.strerror})") from None


def check_checkpoint(location: str) -> None:
    """Raises ValueError if --checkpoint_dir names neither a checkpoint nor a folder with one."""
    path = location.removesuffix(".index")
    is_file = os.path.isfile(f"{path}.index") or is_weight_file(path)
    if not is_file and _last_step(location) < 0:
        raise refuse("checkpoint_dir", location, "holds no checkpoint")


def is_weight_file(path: str) -> bool:
    """Returns whether a file may hold weights of another program, without a .index beside it."""
    name = os.path.basename(path)
    return os.path.isfile(path) and name != "checkpoint" and not _PART.search(name)


def _last_step(folder: str) -> int:
    """Returns the step of the newest checkpoint by its name; -1 if there is none."""
    names = glob.glob(os.path.join(glob.escape(folder), "model.ckpt-*.index"))
    steps = (name.removesuffix(".index").rpartition("-")[2] for name in names)
    return max((int(step) for step in steps if step.isdecimal()), default=-1)


def _check_data_dir(config: TrainConfig | EvalConfig) -> None:
    if not config.data_dir:
        raise refuse("data_dir", "", "must name the folder of the record files")


def _check_records(config: TrainConfig | EvalConfig) -> None:
    info = dataset_factory.get_info(config.dataset_name)
    if config.subset not in info.splits:
        allowed = " or ".join(info.splits)
        raise refuse("subset", config.subset, f"data set {info.name} has no such split; {allowed}")
    with naming("data_dir", config.data_dir):
        found = dataset_factory.find_files(config.dataset_name, config.subset, config.data_dir)
    check_readable(found)


def _warn_of_small_images(config: TrainConfig) -> None:
    sensible = catalog.get_spec(config.net).sensible_image_size
    if config.image_size != -1 and config.image_size < sensible:
        print(
            f"Warning: {config.net} keeps little of images of {config.image_size} pixels; "
            f"{sensible} or more are sensible.",
            flush=True,
        )


def _check_pretrained(config: TrainConfig) -> None:
    path = config.pretrained_model_checkpoint_path
    if path and not any(map(os.path.exists, (path, f"{path}.index"))):
        why = "there is no such checkpoint, folder or weight file"
        raise refuse("pretrained_model_checkpoint_path", path, why)
