"""The flags of the programs and the two frozen configs that they become.

A field declared with `flag` is a flag of the same name; the few others are set by slim's programs.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from absl import flags

from inception.flags import table
from inception.flags.table import (
    BOOLEAN,
    TEXT,
    Checked,
    Kind,
    at_least,
    flag,
    number,
    one_of,
    refuse,
)
from terngrad.layout import BITS_OF_CODEC, DEFAULT_BUCKET_ELEMENTS

# The flags' own default, alexnet, takes 224 x 224 colour images.
_NET_OF_DATASET = {"mnist": "lenet", "cifar10": "cifar10_alexnet"}
_ONE_COPY = "a checkpoint holds one copy of the weights, which all towers share."


def _read_steps(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    first, last = text.split(",")
    return int(first), int(last)


_STEPS = Kind(
    _read_steps,
    "two steps FIRST,LAST with 0 <= FIRST < LAST",
    lambda steps: steps is None or 0 <= steps[0] < steps[1],
)


_CODEC = Kind(
    str,
    f"{', '.join(BITS_OF_CODEC)}, or MODULE:CLASS",
    lambda text: re.fullmatch(r"|\w+|\w+(\.\w+)*:\w+", text) is not None,
)
_SEED = Kind(int, "an integer >= 0 and < 2^63", lambda seed: 0 <= seed < 1 << 63)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threads(Checked):
    """The threads of a program."""

    num_intra_threads: int = flag(
        "Runtime",
        at_least(0),
        0,
        "threads within one operation; 0 = TensorFlow's choice",
        "threads",
    )
    num_inter_threads: int = flag(
        "Runtime", at_least(0), 0, "operations at once; 0 = TensorFlow's choice", "threads"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trainer(Threads):
    """The flags that each trainer has under these names, slim's too."""

    seed: int = flag("Training", _SEED, 1, "of weights, order, augmentation, ternarizing")
    keep_checkpoints: int = flag(
        "Training", at_least(0), 5, "newest checkpoints that are kept; 0 = all", "checkpoints"
    )

    grad_bits: int = flag("TernGrad", one_of(32, 16, 1), 32, "32 = float, 1 = TernGrad", "bits")
    codec: str = flag(
        "TernGrad",
        _CODEC,
        "",
        "what writes gradients, in the place of grad_bits: float, half, ternary, or MODULE:CLASS",
    )
    clip_factor: float = flag(
        "TernGrad",
        number(),
        0.0,
        "gradients are clipped to this many standard deviations, 2.5 works in general; 0 = never",
    )
    size_to_binarize: int = flag(
        "TernGrad", at_least(0), 1, "variables with fewer elements stay float", "elements"
    )
    quantize_logits: bool = flag("TernGrad", BOOLEAN, False, "ternarize the last layer too")
    floating_grad_epoch: int = flag(
        "TernGrad",
        at_least(0),
        0,
        "every so many epochs one uses float gradients, so 1 = always float; 0 = never",
        "epochs",
    )
    use_encoding: bool = flag(
        "TernGrad", BOOLEAN, True, "codes travel packed; False = as float32, for comparison"
    )
    scaler_sharing: bool = flag(
        "TernGrad", BOOLEAN, True, "nodes share the largest scale; False = each its own, for study"
    )

    bucket_elements: int = flag(
        "TernGrad",
        at_least(1),
        DEFAULT_BUCKET_ELEMENTS,
        "gradients are exchanged in buckets of so many values, a bucket as soon as it is complete",
        "values",
    )

    num_nodes: int = flag(
        "Runtime",
        at_least(1, -1),
        -1,
        "nodes, dealt out to the devices; -1 = one a device",
        "nodes",
    )
    deterministic: bool = flag("Runtime", BOOLEAN, True, "equal seeds give equal bits")
    profile_steps: tuple[int, int] | None = flag(
        "Runtime", _STEPS, None, "FIRST,LAST: profile these steps for TensorBoard", "steps"
    )
    log_device_placement: bool = flag("Runtime", BOOLEAN, False, "log where each operation runs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shared(Threads):
    """What training and evaluation both need to know."""

    data_dir: str = flag("Data", TEXT, "/tmp/mydata", "folder of the record files")
    dataset_name: str = flag("Data", TEXT, dataclasses.MISSING, "name of the data set")
    subset: str = flag(
        "Data", one_of("train", "validation", "test"), "train", "train, validation or test"
    )
    batch_size: int = flag(
        "Data",
        at_least(1),
        32,
        "images in a step; training: of this process, over all its nodes",
        "images",
    )
    image_size: int = flag(
        "Data", at_least(1, -1), -1, "side of the net's input; -1 = the net's own", "pixels"
    )
    num_preprocess_threads: int = flag(
        "Data", at_least(1), 4, "parallel decoding and augmentation", "threads"
    )
    num_readers: int = flag("Data", at_least(1), 4, "record files read at once", "files")
    net: str = flag("Training", TEXT, "alexnet", "net, by its name in slim/nets")
    max_steps: int | None = flag("Training", at_least(1), 370_000, "end of training", "steps")

    preprocessing_name: str | None = None  # None: the net's own
    labels_offset: int = 0  # subtracted from every label, and from the number of classes


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(_Shared, Trainer):
    """Everything that a training on one machine depends on."""

    input_queue_memory_factor: int = flag(
        "Data", at_least(1), 16, "size of the shuffle pool", "x 1024 images"
    )
    benchmark_mode: bool = flag("Data", BOOLEAN, False, "synthetic images, nothing read from disk")

    train_dir: str = flag(
        "Training", TEXT, "/tmp/dataset_train", "folder of checkpoints and summaries; resumed from"
    )
    optimizer: str = flag(
        "Training",
        one_of("momentum", "adam", "gd", "rmsprop"),
        "momentum",
        "momentum, adam, gd or rmsprop",
    )
    momentum: float = flag("Training", number(0, 1), 0.9, "of optimizers momentum and rmsprop")
    initial_learning_rate: float = flag("Training", number(), 0.01, "learning rate at step 0")
    learning_rate_decay_type: str = flag(
        "Training",
        one_of("exponential", "polynomial", "fixed"),
        "exponential",
        "exponential, polynomial or fixed; optimizer adam keeps it fixed",
    )
    num_epochs_per_decay: float = flag(
        "Training", number(above=True), 20.0, "exponential: between two decays", "epochs"
    )
    learning_rate_decay_factor: float = flag(
        "Training", number(above=True), 0.1, "exponential: factor of one decay"
    )
    learning_rate_power: float = flag("Training", number(above=True), 0.5, "polynomial: exponent")
    end_learning_rate: float = flag(
        "Training", number(), 0.0, "polynomial: learning rate at max_steps"
    )
    weight_decay: float = flag(
        "Training", number(), 0.0005, "times sum(w^2)/2 over the kernels is added to the loss"
    )
    dropout_keep_prob: float = flag(
        "Training", number(0, 1, above=True), 0.5, "share of activations that dropout keeps"
    )
    moving_average_decay: float = flag(
        "Training",
        number(0, 1),
        0.9999,
        "moving averages of the weights: decay min(this, (1 + step)/(10 + step)); 0 = none",
    )
    pretrained_model_checkpoint_path: str = flag(
        "Training", TEXT, "", "checkpoint (or folder) to start from where train_dir has none"
    )
    fine_tune: bool = flag("Training", BOOLEAN, False, "do not restore the last layer from it")
    save_iter: int = flag(
        "Training", at_least(0), 5000, "between checkpoints; 0 = only the last", "steps"
    )
    save_tower: int = flag("Training", at_least(0, -1), -1, "checked only: towers share one copy")

    num_gpus: int = flag(
        "Runtime",
        at_least(1),
        1,
        "devices with a tower; logical CPU devices without a GPU",
        "devices",
    )
    save_summaries_secs: float = flag(
        "Runtime", number(), 180, "between summaries for TensorBoard; 0 = none", "seconds"
    )

    label_smoothing: float = 0.0
    trainable_scopes: tuple[str, ...] = ()  # first parts of variable names; empty: all train
    checkpoint_exclude_scopes: tuple[str, ...] = ()  # not restored from the pretrained checkpoint
    ignore_missing_vars: bool = False  # of the pretrained checkpoint
    clone_on_cpu: bool = False  # towers on the CPU though there are GPUs
    log_every_n_steps: int = 10
    save_interval_secs: float = 0.0  # checkpoints by time; 0: by save_iter only
    polynomial_over_epochs: bool = (
        False  # polynomial ends after num_epochs_per_decay, not max_steps
    )
    warmup_steps: int = 0  # linear from warmup_learning_rate to initial_learning_rate
    warmup_epochs: float = 0.0  # the same as a number of epochs; one of the two is 0
    warmup_learning_rate: float = 0.0
    warmup_type: str = "gradual"  # or constant: no climb

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes < self.num_gpus:
            raise refuse(
                "num_nodes", self.num_nodes, f"must be >= --num_gpus={self.num_gpus}, or -1"
            )
        if self.batch_size % self.nodes:
            raise refuse(
                "batch_size", self.batch_size, f"must be a multiple of the {self.nodes} nodes"
            )
        if self.save_tower >= self.nodes:
            raise refuse(
                "save_tower", self.save_tower, f"must be -1 to {self.nodes - 1}, one a node"
            )

        self._settle_codec()
        if not self.use_encoding and not self.scaler_sharing:
            raise refuse("use_encoding", False, "must be True with --scaler_sharing=False")
        if self.fine_tune and not self.pretrained_model_checkpoint_path:
            raise refuse("fine_tune", True, "needs --pretrained_model_checkpoint_path")

    def _settle_codec(self) -> None:
        """Turns codecs that have a number of bits into that; checks what others go with."""
        if not self.codec:
            return
        bits = BITS_OF_CODEC.get(self.codec, 32)
        if self.grad_bits not in (32, bits):
            raise refuse("grad_bits", self.grad_bits, f"must not be set with --codec={self.codec}")
        if self.codec in BITS_OF_CODEC:
            object.__setattr__(self, "grad_bits", bits)
            object.__setattr__(self, "codec", "")
            return
        for name in ("use_encoding", "scaler_sharing"):
            if not getattr(self, name):
                raise refuse(name, False, f"must be True with --codec={self.codec}")

    @property
    def is_coded(self) -> bool:
        """Whether gradients of large variables travel as codes."""
        return bool(self.codec) or self.grad_bits == 1

    @property
    def has_float_epochs(self) -> bool:
        """Whether some epochs use float gradients, and others do not."""
        return bool(self.floating_grad_epoch and (self.codec or self.grad_bits != 32))

    @property
    def nodes(self) -> int:
        """The number of nodes, at least one a device."""
        return self.num_gpus if self.num_nodes == -1 else self.num_nodes


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig(_Shared):
    """Everything that an evaluation depends on."""

    checkpoint_dir: str = flag(
        "Evaluation", TEXT, "/tmp/dataset_train", "folder of checkpoints, or one checkpoint"
    )
    eval_dir: str = flag("Evaluation", TEXT, "/tmp/dataset_eval", "folder of the summaries")
    eval_interval_secs: float = flag(
        "Evaluation", number(above=True), 3600, "between looks for a new checkpoint", "seconds"
    )
    run_once: bool = flag("Evaluation", BOOLEAN, False, "evaluate the newest checkpoint and end")
    num_examples: int = flag(
        "Evaluation", at_least(1, -1), 50_000, "at most these many; -1 = all", "images"
    )
    restore_avg_var: bool = flag(
        "Evaluation", BOOLEAN, True, "evaluate the moving averages of the weights"
    )
    tower: int = flag("Evaluation", at_least(0, -1), -1, "checked only: towers share one copy")
    device: str = flag("Evaluation", TEXT, "/gpu:0", "/gpu:N or /cpu:0; the CPU without a GPU")


def _decays_by_epochs(config: TrainConfig) -> bool:
    by_epochs = {"exponential": True, "polynomial": config.polynomial_over_epochs}
    return by_epochs.get(config.learning_rate_decay_type, False)


_INERT: tuple[tuple[Callable[[TrainConfig], bool], tuple[str, ...], str], ...] = (
    (
        lambda c: not c.is_coded,
        ("clip_factor", "size_to_binarize", "quantize_logits", "use_encoding", "scaler_sharing"),
        "--grad_bits other than 1",
    ),
    (lambda c: c.grad_bits == 32 and not c.codec, ("floating_grad_epoch",), "--grad_bits=32"),
    (lambda c: c.optimizer in ("gd", "adam"), ("momentum",), "this --optimizer"),
    (
        lambda c: c.learning_rate_decay_type != "exponential",
        ("learning_rate_decay_factor",),
        "a decay type other than exponential",
    ),
    (
        lambda c: not _decays_by_epochs(c),
        ("num_epochs_per_decay",),
        "a decay type that has no epochs",
    ),
    (
        lambda c: c.learning_rate_decay_type != "polynomial",
        ("learning_rate_power", "end_learning_rate"),
        "a decay type other than polynomial",
    ),
    (
        lambda c: c.benchmark_mode,
        ("data_dir", "num_readers", "num_preprocess_threads", "input_queue_memory_factor"),
        "--benchmark_mode",
    ),
)


def inert_flags(config: TrainConfig) -> dict[str, str]:
    """Flags that have no effect in this config, with what makes them so."""
    return {name: why for holds, names, why in _INERT if holds(config) for name in names}


def tell_inert(
    inert: Mapping[str, str],
    values: flags.FlagValues,
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Prints a line for each flag that was given but has no effect.

    Args:
      inert: see `inert_flags`.
      values: the parsed flags.
      renamed: the program's names of flags that it calls otherwise than `inert` does.
    """
    for field, why in inert.items():
        name = renamed.get(field, field)
        if name in values and values[name].present:
            print(f"--{name}: has no effect with {why}.")


def define_train(values: flags.FlagValues, dataset_name: str) -> None:
    """Defines the flags of the program that trains on `dataset_name`."""
    table.define(
        TrainConfig,
        values,
        dataset_name=dataset_name,
        net=_NET_OF_DATASET.get(dataset_name, TrainConfig.net),
        train_dir=f"/tmp/{dataset_name}_train",
    )


def define_eval(values: flags.FlagValues, dataset_name: str) -> None:
    """Defines the flags of the program that evaluates on `dataset_name`."""
    table.define(
        EvalConfig,
        values,
        dataset_name=dataset_name,
        net=_NET_OF_DATASET.get(dataset_name, EvalConfig.net),
        subset="test" if dataset_name in _NET_OF_DATASET else "validation",
        checkpoint_dir=f"/tmp/{dataset_name}_train",
        eval_dir=f"/tmp/{dataset_name}_eval",
    )


def train_config(values: flags.FlagValues, dataset_name: str) -> TrainConfig:
    """Returns the config of the program that trains on `dataset_name`."""
    _check_dataset(values, dataset_name)
    config = table.read(TrainConfig, values)
    if config.save_tower != -1:
        print(f"--save_tower={config.save_tower}: {_ONE_COPY}")
    if config.optimizer == "adam":
        if values["learning_rate_decay_type"].present:
            print(
                "--learning_rate_decay_type: with --optimizer=adam the learning rate stays fixed."
            )
        config = dataclasses.replace(config, learning_rate_decay_type="fixed")
    tell_inert(inert_flags(config), values)
    return config


def eval_config(values: flags.FlagValues, dataset_name: str) -> EvalConfig:
    """Returns the config of the program that evaluates on `dataset_name`."""
    _check_dataset(values, dataset_name)
    config = table.read(EvalConfig, values)
    if config.tower != -1:
        print(f"--tower={config.tower}: {_ONE_COPY}")
    return config


def _check_dataset(values: flags.FlagValues, dataset_name: str) -> None:
    if values.dataset_name != dataset_name:
        raise refuse("dataset_name", values.dataset_name, f"this program reads {dataset_name}")
