"""The flags of slim's programs: TF-Slim's names and defaults, mapped to the suite's configs."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from absl.flags import FlagValues

from inception.flags import configs, table
from inception.flags.checks import inert_flags, tell_inert
from inception.flags.cluster import LAUNCHED, ClusterConfig
from inception.flags.table import (
    BOOLEAN,
    TEXT,
    Checked,
    RefusedError,
    at_least,
    flag,
    number,
    one_of,
    refuse,
)

_NETS = {"lenet": "lenet_slim"}  # `lenet` of the other programs is the paper's
_SUITE_NETS = {net: name for name, net in _NETS.items()}
_RENAMED = {"learning_rate_power": "power"}  # the suite's name of a flag to TF-Slim's
_NAMES = {  # the suite's names of flags to TF-Slim's
    "data_dir": "dataset_dir",
    "subset": "dataset_split_name",
    "net": "model_name",
    "num_preprocess_threads": "num_preprocessing_threads",
    "pretrained_model_checkpoint_path": "checkpoint_path",
    "checkpoint_dir": "checkpoint_path",
    "num_gpus": "num_clones",
}
_OPTIMIZERS = {"sgd": "gd", "momentum": "momentum", "adam": "adam", "rmsprop": "rmsprop"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shared(Checked):
    dataset_name: str = flag("Data", TEXT, "imagenet", "name of the data set")
    dataset_split_name: str = flag(
        "Data", one_of("train", "validation", "test"), "train", "train, validation or test"
    )
    dataset_dir: str = flag("Data", TEXT, "", "folder of the record files; must be given")
    labels_offset: int = flag(
        "Data", at_least(0), 0, "subtracted from the labels, and from the number of classes"
    )
    preprocessing_name: str | None = flag(
        "Data", TEXT, None, "preprocessing by its name in slim/preprocessing; not set = the net's"
    )
    num_preprocessing_threads: int = flag(
        "Data", at_least(1), 4, "threads that decode and augment images", "threads"
    )
    model_name: str = flag(
        "Training", TEXT, "inception_v3", "net, by its name in slim/nets; lenet is lenet_slim"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dataset_dir:
            raise refuse("dataset_dir", "", "must name the folder of the record files")

    def _shared(self) -> dict[str, Any]:
        return {
            "data_dir": self.dataset_dir,
            "dataset_name": self.dataset_name,
            "subset": self.dataset_split_name,
            "num_preprocess_threads": self.num_preprocessing_threads,
            "net": _NETS.get(self.model_name, self.model_name),
            "preprocessing_name": self.preprocessing_name,
            "labels_offset": self.labels_offset,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainFlags(_Shared, configs.Trainer):
    """The flags of train_image_classifier."""

    batch_size: int = flag("Data", at_least(1), 32, "images in a step of one clone", "images")
    train_image_size: int | None = flag(
        "Data",
        at_least(1),
        None,
        "side length of the net's input; not set = the net's default",
        "pixels",
    )
    num_readers: int = flag("Data", at_least(1), 4, "number of record files read at once", "files")

    train_dir: str = flag(
        "Training",
        TEXT,
        "/tmp/tfmodel/",
        "folder of checkpoints and summaries; training resumes from it",
    )
    max_number_of_steps: int | None = flag(
        "Training", at_least(1), None, "end of training; not set = never", "steps"
    )
    optimizer: str = flag(
        "Training", one_of(*_OPTIMIZERS), "rmsprop", "sgd, momentum, adam or rmsprop"
    )
    momentum: float = flag("Training", number(0, 1), 0.9, "of optimizers momentum and rmsprop")
    learning_rate: float = flag("Training", number(), 0.01, "learning rate at step 0")
    learning_rate_decay_type: str = flag(
        "Training",
        one_of("exponential", "polynomial", "fixed"),
        "exponential",
        "exponential, polynomial or fixed",
    )
    num_epochs_per_decay: float = flag(
        "Training",
        number(above=True),
        2.0,
        "exponential: epochs between two decays; polynomial: length of the whole decay",
        "epochs",
    )
    learning_rate_decay_factor: float = flag(
        "Training", number(above=True), 0.94, "exponential: factor of one decay"
    )
    power: float = flag("Training", number(above=True), 1.0, "polynomial: exponent")
    end_learning_rate: float = flag(
        "Training", number(), 0.0001, "polynomial: learning rate after the decay"
    )
    warmup_steps: int = flag(
        "Training", at_least(0), 0, "linear from warmup_learning_rate to learning_rate", "steps"
    )
    warmup_epochs: float = flag(
        "Training",
        number(),
        0.0,
        "length of the warm-up in epochs, instead of warmup_steps",
        "epochs",
    )
    warmup_learning_rate: float = flag(
        "Training", number(), 0.0, "learning rate at the start of the warm-up"
    )
    weight_decay: float = flag(
        "Training",
        number(),
        0.00004,
        "weight of the penalty sum(w^2)/2 over the kernels in the loss",
    )
    label_smoothing: float = flag(
        "Training", number(0, 1), 0.0, "fraction of a label spread over all classes"
    )
    moving_average_decay: float | None = flag(
        "Training",
        number(0, 1),
        None,
        "decay of the moving averages of the weights; not set = no averages",
    )
    checkpoint_path: str = flag(
        "Training",
        TEXT,
        "",
        "weights to start from if train_dir has none: a checkpoint of this suite or of TF-Slim, "
        "its folder, or a .keras or .h5 file",
    )
    save_interval_secs: float = flag(
        "Training", number(), 600, "time between checkpoints", "seconds"
    )

    num_clones: int = flag(
        "Runtime", at_least(1), 1, "number of devices with a clone of the net", "devices"
    )
    clone_on_cpu: bool = flag(
        "Runtime", BOOLEAN, False, "put the clones on the CPU even if there are GPUs"
    )
    log_every_n_steps: int = flag(
        "Runtime", at_least(1), 10, "steps between two log lines", "steps"
    )
    save_summaries_secs: float = flag(
        "Runtime",
        number(),
        600,
        "time between summaries for TensorBoard, which also have the first and the last step; "
        "0 = no summaries",
        "seconds",
    )

    def config(self) -> configs.TrainConfig:
        """Returns the suite's config; ValueError names a flag that does not fit the others."""
        if self.warmup_steps and self.warmup_epochs:
            raise refuse("warmup_epochs", self.warmup_epochs, "must be 0 beside --warmup_steps")
        same = dataclasses.fields(configs.Trainer)
        return configs.TrainConfig(
            **{field.name: getattr(self, field.name) for field in same},
            **self._shared(),
            batch_size=self.batch_size * self.num_clones,
            image_size=self.train_image_size or -1,
            num_readers=self.num_readers,
            max_steps=self.max_number_of_steps,
            train_dir=self.train_dir,
            optimizer=_OPTIMIZERS[self.optimizer],
            momentum=self.momentum,
            initial_learning_rate=self.learning_rate,
            learning_rate_decay_type=self.learning_rate_decay_type,
            num_epochs_per_decay=self.num_epochs_per_decay,
            learning_rate_decay_factor=self.learning_rate_decay_factor,
            learning_rate_power=self.power,
            end_learning_rate=self.end_learning_rate,
            polynomial_over_epochs=True,
            warmup_steps=self.warmup_steps,
            warmup_epochs=self.warmup_epochs,
            warmup_learning_rate=self.warmup_learning_rate,
            weight_decay=self.weight_decay,
            dropout_keep_prob=None,
            label_smoothing=self.label_smoothing,
            moving_average_decay=self.moving_average_decay or 0.0,
            pretrained_model_checkpoint_path=self.checkpoint_path,
            save_iter=0,
            save_interval_secs=self.save_interval_secs,
            num_gpus=self.num_clones,
            clone_on_cpu=self.clone_on_cpu,
            log_every_n_steps=self.log_every_n_steps,
            save_summaries_secs=self.save_summaries_secs,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterFlags(Checked):
    """The flags of train_image_classifier for several machines."""

    variable_update: str = flag(
        "Distributed",
        one_of("local", *LAUNCHED),
        "local",
        "local trains on this machine alone; mpi and horovod name the launcher of several workers",
    )
    worker_timeout_secs: float = flag(
        "Distributed",
        number(above=True),
        60.0,
        "a worker that is silent for this long ends the training",
        "seconds",
    )
    split_data: bool = flag(
        "Distributed",
        BOOLEAN,
        True,
        "each worker reads its share of the records; False: --dataset_dir holds only its share",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalFlags(_Shared, configs.Threads):
    """The flags of eval_image_classifier."""

    batch_size: int = flag("Data", at_least(1), 100, "images in a step", "images")
    eval_image_size: int | None = flag(
        "Data",
        at_least(1),
        None,
        "side length of the net's input; not set = the net's default",
        "pixels",
    )
    max_num_batches: int | None = flag(
        "Evaluation",
        at_least(1),
        None,
        "maximum number of batches to evaluate; not set = all",
        "batches",
    )
    checkpoint_path: str = flag(
        "Evaluation", TEXT, "/tmp/tfmodel/", "folder of checkpoints, or one checkpoint"
    )
    eval_dir: str = flag("Evaluation", TEXT, "/tmp/tfmodel/", "folder of the summaries")
    moving_average_decay: float | None = flag(
        "Evaluation",
        number(0, 1),
        None,
        "if set, evaluate the moving averages of the weights that the training kept",
    )
    run_once: bool = flag(
        "Evaluation",
        BOOLEAN,
        True,
        "evaluate the newest checkpoint once, then end; False: also each newer one",
    )
    eval_interval_secs: float = flag(
        "Evaluation", number(above=True), 3600, "time between looks for a new checkpoint", "seconds"
    )
    max_steps: int | None = flag(
        "Evaluation", at_least(1), 370_000, "ends after the checkpoint of this step", "steps"
    )

    def config(self) -> configs.EvalConfig:
        """Returns the suite's config."""
        return configs.EvalConfig(
            **self._shared(),
            num_intra_threads=self.num_intra_threads,
            num_inter_threads=self.num_inter_threads,
            batch_size=self.batch_size,
            image_size=self.eval_image_size or -1,
            num_examples=(self.max_num_batches or 0) * self.batch_size or -1,
            checkpoint_dir=self.checkpoint_path,
            eval_dir=self.eval_dir,
            restore_avg_var=bool(self.moving_average_decay),
            run_once=self.run_once,
            eval_interval_secs=self.eval_interval_secs,
            max_steps=self.max_steps,
        )


@contextlib.contextmanager
def own_names(image_size: str) -> Iterator[None]:
    """Lets the block's errors name flags as TF-Slim does; `image_size` is that of the size."""
    names = _NAMES | {"image_size": image_size}
    try:
        yield
    except RefusedError as error:
        name = names.get(error.name, error.name)
        value = _SUITE_NETS.get(error.value, error.value) if name == "model_name" else error.value
        raise refuse(name, value, _renamed(error.why, names)) from None
    except ValueError as error:
        if type(error) is not ValueError:  # others are told apart by their type
            raise
        raise ValueError(_renamed(str(error), names)) from error


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Returns a text with TF-Slim's names of the flags in it, and what stands for a setting."""
    text = text.replace("--restore_avg_var=False", "without --moving_average_decay")
    return re.sub(r"--(\w+)", lambda found: f"--{names.get(found[1], found[1])}", text)


def cluster_config(values: FlagValues, save_interval_secs: float) -> ClusterConfig | None:
    """Returns how the workers meet, or None where this one trains alone."""
    given = table.read(ClusterFlags, values)
    if given.variable_update == "local":
        return None
    return ClusterConfig(
        variable_update=given.variable_update,
        worker_timeout_secs=given.worker_timeout_secs,
        split_data=given.split_data,
        save_interval_secs=save_interval_secs,
    )


def train_config(values: FlagValues) -> configs.TrainConfig:
    """Returns the config of the program that trains; names flags without effect."""
    config = table.read(TrainFlags, values).config()
    tell_inert(inert_in_training(config), values)
    return config


def inert_in_training(config: configs.TrainConfig) -> dict[str, str]:
    """Flags of TF-Slim's program that have no effect, with what makes them so."""
    return {_RENAMED.get(name, name): why for name, why in inert_flags(config).items()}
