"""The flags of slim's programs: TF-Slim's names and defaults, mapped to the suite's configs."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from absl.flags import FlagValues

from inception.flags import command_line, configs, table
from inception.flags.checks import inert_flags, log_inert
from inception.flags.cluster import ENGINES, ENGINES_HELP, ClusterConfig
from inception.flags.configs import EvalConfig, TrainConfig
from inception.flags.table import (
    BOOLEAN,
    MAX_SIDE,
    TEXT,
    Checked,
    RefusedError,
    at_least,
    flag,
    number,
    one_of,
    refuse,
)
from slim.nets import catalog

_data, _training, _runtime = (
    functools.partial(flag, group) for group in ("Data", "Training", "Runtime")
)
_NETS = {"lenet": "lenet_slim"}  # `lenet` of the other programs is the paper's
_SUITE_NETS = {net: name for name, net in _NETS.items()}
_OPTIMIZERS = {"sgd": "gd", "momentum": "momentum", "adam": "adam", "rmsprop": "rmsprop"}
_SETS = "sets"  # in a field's metadata: the field of the suite's config that it sets
_SAME = object()


def _like(field: str, default: Any = _SAME, config: type = TrainConfig, **changes: Any) -> Any:
    """Returns a flag that sets a field of the suite's config: the field's flag with `changes`."""
    entry = dataclasses.replace(table.table(config)[field], **changes)
    if default is _SAME:
        default = {f.name: f.default for f in dataclasses.fields(config)}[field]
    return dataclasses.field(default=default, metadata={"flag": entry, _SETS: field})


_like_eval = functools.partial(_like, config=EvalConfig)


def _image_size(default: str) -> Any:
    text = f"side length of the net's input; not set = {default}"
    return _like("image_size", None, kind=at_least(1, high=MAX_SIDE), help=text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shared(Checked):
    dataset_name: str = _like("dataset_name", "imagenet")
    dataset_split_name: str = _like("subset")
    dataset_dir: str = _like("data_dir", "", help="folder of the record files; must be given")
    labels_offset: int | None = _data(
        at_least(0), 0, "subtracted from the labels, and from the number of classes"
    )
    preprocessing_name: str | None = _data(
        TEXT,
        None,
        "preprocessing by its name in slim/preprocessing, or by that of a net; not set = the net's",
    )
    num_preprocessing_threads: int = _like("num_preprocess_threads")
    model_name: str = _like(
        "net", "inception_v3", help="net, by its name in slim/nets; lenet is lenet_slim"
    )

    def _settings(self) -> dict[str, Any]:
        """The fields of the suite's config, by name; some need another value."""
        fields = dataclasses.fields(self)
        settings = {f.metadata.get(_SETS, f.name): getattr(self, f.name) for f in fields}
        preprocessing = self.preprocessing_name
        if preprocessing in catalog.NETS:
            preprocessing = catalog.NETS[preprocessing].preprocessing
        return settings | {
            "net": _NETS.get(self.model_name, self.model_name),
            "preprocessing_name": preprocessing,
            "image_size": settings["image_size"] or -1,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainFlags(_Shared, configs.Trainer):
    """The flags of train_image_classifier."""

    batch_size: int = _like("batch_size", help="images in a step of one clone")
    train_image_size: int | None = _image_size("the net's default")
    num_readers: int = _like("num_readers")

    train_dir: str = _like("train_dir", "/tmp/tfmodel/")
    max_number_of_steps: int | None = _like(
        "max_steps", None, help="end of training; not set = never"
    )
    optimizer: str = _like(
        "optimizer", "rmsprop", kind=one_of(*_OPTIMIZERS), help="sgd, momentum, adam or rmsprop"
    )
    momentum: float = _like("momentum")
    learning_rate: float = _like("initial_learning_rate")
    learning_rate_decay_type: str = _like(
        "learning_rate_decay_type", help="exponential, polynomial or fixed"
    )
    num_epochs_per_decay: float = _like(
        "num_epochs_per_decay",
        2.0,
        help="exponential: epochs between two decays; polynomial: length of the whole decay",
    )
    learning_rate_decay_factor: float = _like("learning_rate_decay_factor", 0.94)
    power: float = _like("learning_rate_power", 1.0)
    end_learning_rate: float = _like(
        "end_learning_rate", 0.0001, help="polynomial: learning rate after the decay"
    )
    warmup_steps: int = _training(
        at_least(0), 0, "linear from warmup_learning_rate to learning_rate", "steps"
    )
    warmup_epochs: float = _training(
        number(), 0.0, "length of the warm-up in epochs, instead of warmup_steps", "epochs"
    )
    warmup_learning_rate: float = _training(
        number(), 0.0, "learning rate at the start of the warm-up"
    )
    weight_decay: float = _like("weight_decay", 0.00004)
    label_smoothing: float = _training(
        number(0, 1), 0.0, "fraction of a label spread over all classes"
    )
    moving_average_decay: float | None = _like(
        "moving_average_decay",
        None,
        help="decay of the moving averages of the weights; not set = no averages",
    )
    checkpoint_path: str = _like("pretrained_model_checkpoint_path")
    save_interval_secs: float = _training(
        number(), 600, "time between checkpoints; 0 = only at the end", "seconds"
    )

    num_clones: int = _like("num_gpus", help="number of devices with a clone of the net")
    clone_on_cpu: bool = _runtime(
        BOOLEAN, False, "put the clones on the CPU even if there are GPUs"
    )
    log_every_n_steps: int = _runtime(at_least(1), 10, "steps between two log lines", "steps")
    save_summaries_secs: float = _like("save_summaries_secs", 600)

    def config(self) -> TrainConfig:
        """Returns the suite's config; ValueError names a flag that does not fit the others."""
        if self.warmup_steps and self.warmup_epochs:
            raise refuse("warmup_epochs", self.warmup_epochs, "must be 0 beside --warmup_steps")
        other = {
            "batch_size": self.batch_size * self.num_clones,
            "optimizer": _OPTIMIZERS[self.optimizer],
            "moving_average_decay": self.moving_average_decay or 0.0,
            "polynomial_over_epochs": True,
            "dropout_keep_prob": None,
            "save_iter": 0,
        }
        return TrainConfig(**self._settings() | other)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterFlags(ClusterConfig):
    """The flags of train_image_classifier that say which process of a training this is."""

    variable_update: str | None = _like(
        "variable_update",
        config=ClusterConfig,
        kind=one_of("local", *ENGINES),
        help="local: this machine trains alone (the default without --worker_hosts); or the engine "
        f"of the exchange of several workers: {ENGINES_HELP}",
    )
    save_interval_secs: float = 0.0  # a flag of TrainFlags
    split_data: bool = _like(
        "split_data",
        config=ClusterConfig,
        help="each worker reads its share of the records; False: --dataset_dir holds only its "
        "share",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalFlags(_Shared, configs.Threads):
    """The flags of eval_image_classifier."""

    dataset_split_name: str = _like("subset", "test")
    batch_size: int = _like("batch_size", 100, help="images in a step")
    eval_image_size: int | None = _image_size("as in the training")
    labels_offset: int | None = _data(
        at_least(0),
        None,
        "subtracted from the labels, and from the number of classes; not set = as in the training",
    )
    preprocessing_name: str | None = _data(
        TEXT,
        None,
        "preprocessing by its name in slim/preprocessing, or by that of a net; not set = as in the "
        "training",
    )
    max_num_batches: int | None = _like_eval(
        "num_examples",
        None,
        kind=at_least(1),
        help="maximum number of batches to evaluate; not set = all",
        unit="batches",
    )
    checkpoint_path: str = _like_eval("checkpoint_dir", "/tmp/tfmodel/")
    eval_dir: str = _like_eval("eval_dir", "/tmp/tfmodel/")
    moving_average_decay: float | None = _like_eval(
        "restore_avg_var",
        None,
        kind=number(0, 1),
        help="if set, evaluate the moving averages of the weights that the training kept",
    )
    run_once: bool = _like_eval(
        "run_once",
        True,
        help="evaluate the newest checkpoint once, then end; False: also each newer one",
    )
    eval_interval_secs: float = _like_eval("eval_interval_secs")
    max_steps: int | None = _like_eval("max_steps")

    def config(self) -> EvalConfig:
        """Returns the suite's config."""
        other = {
            "num_examples": (self.max_num_batches or 0) * self.batch_size or -1,
            "restore_avg_var": bool(self.moving_average_decay),
        }
        return EvalConfig(**self._settings() | other)


def _names(flags_class: type[_Shared]) -> dict[str, str]:
    """The suite's names of flags to those of one of slim's programs."""
    fields = dataclasses.fields(flags_class)
    return {f.metadata[_SETS]: f.name for f in fields if _SETS in f.metadata}


@contextlib.contextmanager
def own_names(flags_class: type[_Shared]) -> Iterator[None]:
    """Lets the block's errors name flags as TF-Slim's program of these flags does."""
    names = _names(flags_class)
    try:
        yield
    except RefusedError as error:
        name = names.get(error.name, error.name)
        value = _SUITE_NETS.get(error.value, error.value) if name == "model_name" else error.value
        raise refuse(name, value, _renamed(error.why, names)) from None
    except (ValueError, MemoryError) as error:
        if type(error) not in (ValueError, MemoryError):  # the type distinguishes others
            raise
        raise type(error)(_renamed(str(error), names)) from error


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Returns a text with TF-Slim's names of the flags in it, and what stands for a setting."""
    text = text.replace("--restore_avg_var=False", "without --moving_average_decay")
    return re.sub(r"--(\w+)", lambda found: f"--{names.get(found[1], found[1])}", text)


def define_train(values: FlagValues) -> None:
    """Defines the flags of train_image_classifier."""
    table.define(TrainFlags, values)
    table.define(ClusterFlags, values)


def cluster_config(values: FlagValues, environment: Mapping[str, str]) -> ClusterConfig | None:
    """Returns which process of a training this is, or None where it trains alone."""
    others = _cluster_flags(values)
    if values.variable_update == "local" and others:
        why = f"must not be set with {others[0]}, which is for several workers"
        raise refuse("variable_update", "local", why)
    if _is_alone(values):
        return None
    return command_line.cluster_config(values, environment, ClusterFlags)


def _is_alone(values: FlagValues) -> bool:
    return values.variable_update in (None, "local") and not _cluster_flags(values)


def _cluster_flags(values: FlagValues) -> list[str]:
    """The given flags that make this one of several processes."""
    hosts = [f"--{name}" for name in ("worker_hosts", "ps_hosts") if values[name].value]
    roles = (("cluster", "auto"), ("job_name", "ps"))
    return hosts + [f"--{name}={role}" for name, role in roles if values[name].value == role]


def train_config(values: FlagValues) -> TrainConfig:
    """Returns the config of the program that trains; names flags without effect."""
    config = read_train(values)
    command_line.say_suited(values)
    log_inert(inert(values), values)
    return config


def read_train(values: FlagValues) -> TrainConfig:
    """Returns the config of the program that trains."""
    command_line.follow_codec(values)
    return table.read(TrainFlags, values).config()


def inert(values: FlagValues) -> dict[str, str]:
    """Flags that have no effect in the program that trains, with what makes them so."""
    names = _names(TrainFlags)
    config = read_train(values)
    found = {names.get(n, n): why for n, why in inert_flags(config).items()}
    if not (config.warmup_steps or config.warmup_epochs):
        found["warmup_learning_rate"] = "--warmup_steps=0 and --warmup_epochs=0"
    if _is_alone(values):
        others = table.table(ClusterFlags).keys() - {"variable_update"}
        return found | dict.fromkeys(sorted(others), "--variable_update=local")
    return found | table.read(ClusterFlags, values).inert_flags
