"""The two frozen configs that the flags of the programs become.

A field that a group of flags declares is a flag of the same name; slim's programs set the others.
"""

import dataclasses
import functools
import re

from inception.flags.rates import Rates
from inception.flags.table import (
    BOOLEAN,
    MAX_BATCH,
    MAX_SIDE,
    MAX_STEPS,
    MAX_THREADS,
    NAMES,
    TEXT,
    Checked,
    Kind,
    at_least,
    flag,
    number,
    one_of,
    refuse,
)
from terngrad import parts
from terngrad.codecs.registry import CODEC_NAMES
from terngrad.layout import (
    BITS_OF_CODEC,
    DEFAULT_BUCKET_ELEMENTS,
    DRAWS,
    EXACT,
    FEEDBACK_CODES,
    GRAD_BITS,
    MAX_CODES,
    MAX_NODES,
    SUM_CODEC_NAMES,
    WHY_FEEDBACK_NEEDS_ALL,
    codec_of,
)
from terngrad.training.slots import SLOTS

_data, _training, _terngrad, _runtime, _evaluation = (
    functools.partial(flag, group)
    for group in ("Data", "Training", "TernGrad", "Runtime", "Evaluation")
)


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
    f"{', '.join(CODEC_NAMES)}, or MODULE:CLASS",
    lambda text: re.fullmatch(r"|[\w-]+|\w+(\.\w+)*:\w+", text) is not None,
)
_SCALE_BY = Kind(str, parts.ALLOWED, parts.is_known)
_SEED = Kind(int, "an integer >= 0 and < 2^63", lambda seed: 0 <= seed < 1 << 63)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threads(Checked):
    """The threads of a program."""

    num_intra_threads: int = _runtime(
        at_least(0, high=MAX_THREADS),
        0,
        "threads within one operation; 0 = TensorFlow's choice",
        "threads",
    )
    num_inter_threads: int = _runtime(
        at_least(0, high=MAX_THREADS), 0, "operations at once; 0 = TensorFlow's choice", "threads"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trainer(Threads):
    """The flags that each trainer has under these names, slim's too."""

    seed: int = _training(
        _SEED, 1, "seed of the initial weights, the order of the data, augmentation and ternarizing"
    )
    keep_checkpoints: int = _training(
        at_least(0), 5, "number of newest checkpoints to keep; 0 = all", "checkpoints"
    )
    checkpoint_exclude_scopes: tuple[str, ...] = _training(
        NAMES,
        (),
        "variables whose names begin with one of these start afresh, not from pretrained weights",
    )
    ignore_missing_vars: bool = _training(
        BOOLEAN, False, "variables that the pretrained weights lack start afresh, too"
    )
    trainable_scopes: tuple[str, ...] = _training(
        NAMES, (), "train only variables whose names begin with one of these; not set = all"
    )

    grad_bits: int = _terngrad(
        one_of(*GRAD_BITS),
        32,
        "32 = float, 16 = half precision, 1 = ternary; of more levels: 2 = 5, 3 = 7, 4 = 15, "
        "8 = 255",
        "bits",
    )
    codec: str = _terngrad(
        _CODEC,
        "",
        f"what writes gradients, in the place of grad_bits: {', '.join(CODEC_NAMES)}, or "
        "MODULE:CLASS; flags that are not set take what suits the codec: docs/one-machine.md",
    )
    draws: str = _terngrad(
        one_of(*DRAWS),
        DRAWS[0],
        "random numbers of codes: independent, or antithetic = pairs of nodes share them, for "
        "less noise",
    )
    clip_factor: float = _terngrad(
        number(),
        0.0,
        "clip gradients to this many standard deviations, or root mean squares with another "
        "scale_by than variable: 2.5 suits 3 and 5 levels, 4 suits 7, 5 suits 15; 0 = no clipping",
    )
    scale_by: str = _terngrad(
        _SCALE_BY,
        "variable",
        "values that share a scale: variable, all of a variable; channel, of an output channel; "
        "block:N, N neighbours",
    )
    sum_codec: str = _terngrad(
        one_of(*SUM_CODEC_NAMES),
        EXACT,
        "how the means of coded gradients travel back: exact, as sums of codes; ternary, coded "
        "again by the owner of each share, with feedback: fewer bytes with many workers",
    )
    size_to_binarize: int = _terngrad(
        at_least(0), 1, "variables with fewer elements stay float", "elements"
    )
    quantize_logits: bool = _terngrad(BOOLEAN, False, "ternarize the last layer too")
    floating_grad_epoch: int = _terngrad(
        at_least(0),
        0,
        "one epoch in this many uses float gradients, so 1 = always float; 0 = never",
        "epochs",
    )
    use_encoding: bool = _terngrad(
        BOOLEAN, True, "send codes packed; False = as float32, for comparison"
    )
    scaler_sharing: bool = _terngrad(
        BOOLEAN, True, "all nodes use the largest scale; False = each node its own, for study"
    )

    local_steps: int = _terngrad(
        at_least(1),
        1,
        "each worker makes this many steps of its own, then all exchange their deltas, what these "
        "steps changed; 1 = gradients are exchanged in each step",
        "steps",
    )
    local_fragments: int = _terngrad(
        at_least(1),
        1,
        "local steps: number of parts of the net that are exchanged in turn, each once in "
        "local_steps; divides that",
    )
    local_overlap: bool = _terngrad(
        BOOLEAN,
        False,
        "local steps: make the next ones while an exchange is under way, whose result then counts "
        "one exchange later",
    )
    outer_learning_rate: float = _terngrad(
        number(above=True), 0.7, "local steps: learning rate of the mean delta"
    )
    outer_momentum: float = _terngrad(
        number(0, 1), 0.8, "local steps: Nesterov momentum of the mean delta; 0 = none"
    )
    outer_feedback: float = _terngrad(
        number(0, 1),
        1.0,
        "the share of its memory that a codec with feedback adds to the next gradient, or to the "
        "next delta of local steps, and the owner of coded means to its next ones",
    )

    bucket_elements: int = _terngrad(
        at_least(1),
        DEFAULT_BUCKET_ELEMENTS,
        "exchange gradients in buckets of this many values, each bucket as soon as it is complete",
        "values",
    )

    num_nodes: int = _runtime(
        at_least(1, -1),
        -1,
        "number of nodes, spread over the devices; -1 = one per device",
        "nodes",
    )
    deterministic: bool = _runtime(BOOLEAN, True, "runs with equal seeds give equal bits")
    profile_steps: tuple[int, int] | None = _runtime(
        _STEPS, None, "FIRST,LAST: profile these steps for TensorBoard", "steps"
    )
    log_device_placement: bool = _runtime(BOOLEAN, False, "log where each operation runs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shared(Threads):
    """The settings that training and evaluation share."""

    data_dir: str = _data(TEXT, "/tmp/mydata", "folder of the record files")
    dataset_name: str = _data(TEXT, dataclasses.MISSING, "name of the data set")
    subset: str = _data(one_of("train", "validation", "test"), "train", "train, validation or test")
    batch_size: int = _data(
        at_least(1, high=MAX_BATCH),
        32,
        "images in a step; in training: of this process, over all its nodes",
        "images",
    )
    image_size: int = _data(
        at_least(1, -1, MAX_SIDE),
        -1,
        "side length of the net's input; -1 = the net's default",
        "pixels",
    )
    num_preprocess_threads: int = _data(
        at_least(1, high=MAX_THREADS), 4, "threads that decode and augment images", "threads"
    )
    num_readers: int = _data(at_least(1), 4, "number of record files read at once", "files")
    net: str = _training(TEXT, dataclasses.MISSING, "net, by its name in slim/nets")

    # None: the net's own, in an evaluation the checkpoint's
    preprocessing_name: str | None = None
    # Subtracted from every label, and from the number of classes; None: the checkpoint's
    labels_offset: int | None = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(_Shared, Trainer, Rates):
    """Everything that a training on one machine depends on."""

    input_queue_memory_factor: int = _data(
        at_least(1), 16, "size of the shuffle pool", "x 1024 images"
    )
    benchmark_mode: bool = _data(
        BOOLEAN, False, "train on synthetic images; nothing is read from disk"
    )

    train_dir: str = _training(
        TEXT, "/tmp/dataset_train", "folder of checkpoints and summaries; training resumes from it"
    )
    optimizer: str = _training(one_of(*SLOTS), "momentum", "momentum, adam, gd or rmsprop")
    momentum: float = _training(number(0, 1), 0.9, "of optimizers momentum and rmsprop")
    weight_decay: float = _training(
        number(), 0.0005, "weight of the penalty sum(w^2)/2 over the kernels in the loss"
    )
    dropout_keep_prob: float | None = flag(  # None: the net's own
        "Training", number(0, 1, above=True), 0.5, "fraction of activations that dropout keeps"
    )
    moving_average_decay: float = _training(
        number(0, 1),
        0.9999,
        "moving averages of the weights: decay min(this, (1 + step)/(10 + step)); 0 = none",
    )
    pretrained_model_checkpoint_path: str = _training(
        TEXT,
        "",
        "weights to start from if train_dir has none: a checkpoint of this suite or of TF-Slim, "
        "its folder, or a .keras or .h5 file",
    )
    fine_tune: bool = _training(
        BOOLEAN, False, "restore all but the last layer from pretrained_model_checkpoint_path"
    )
    save_iter: int = _training(
        at_least(0, high=MAX_STEPS), 5000, "steps between checkpoints; 0 = only the last", "steps"
    )
    save_tower: int = _training(
        at_least(0, -1),
        -1,
        "accepted and checked, without effect: all towers share one copy of the weights",
    )

    num_gpus: int = _runtime(
        at_least(1),
        1,
        "number of devices to train on; logical CPU devices if there is no GPU",
        "devices",
    )
    save_summaries_secs: float = _runtime(
        number(),
        180,
        "time between summaries for TensorBoard, which also have the first and the last step; "
        "0 = no summaries",
        "seconds",
    )

    label_smoothing: float | None = None  # None: the net's own
    clone_on_cpu: bool = False  # towers on the CPU though there are GPUs
    log_every_n_steps: int = 10
    save_interval_secs: float = 0.0  # checkpoints by time; 0: by save_iter only

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes < self.num_gpus:
            raise refuse(
                "num_nodes", self.num_nodes, f"must be >= --num_gpus={self.num_gpus}, or -1"
            )
        if self.nodes > MAX_NODES:
            raise refuse("num_nodes", self.nodes, f"must be at most {MAX_NODES}")
        if self.batch_size % self.nodes:
            raise refuse(
                "batch_size", self.batch_size, f"must be a multiple of the {self.nodes} nodes"
            )
        if self.save_tower >= self.nodes:
            raise refuse(
                "save_tower", self.save_tower, f"must be -1 to {self.nodes - 1}, one a node"
            )

        self._settle_codec()
        if self.local_steps % self.local_fragments:
            why = f"must divide --local_steps={self.local_steps}"
            raise refuse("local_fragments", self.local_fragments, why)
        if not self.use_encoding and not self.scaler_sharing:
            raise refuse("use_encoding", False, "must be True with --scaler_sharing=False")
        if self.fine_tune and not self.pretrained_model_checkpoint_path:
            raise refuse("fine_tune", True, "needs --pretrained_model_checkpoint_path")

    def _settle_codec(self) -> None:
        """Replaces a codec that has a number of bits by that; checks the settings of others."""
        if self.codec:
            self._settle_named_codec()
        if self.clip_factor and self.codec in FEEDBACK_CODES:
            why = f"must be 0 with --codec={self.codec}: {WHY_FEEDBACK_NEEDS_ALL}"
            raise refuse("clip_factor", self.clip_factor, why)
        if self.codec or (self.is_coded and self.grad_bits != 1):
            what = f"--codec={self.codec}" if self.codec else f"--grad_bits={self.grad_bits}"
            for name in ("use_encoding", "scaler_sharing"):
                if not getattr(self, name):
                    raise refuse(name, False, f"must be True with {what}")
        if self.sum_codec != EXACT and not (self.use_encoding and self.scaler_sharing):
            name = "scaler_sharing" if self.use_encoding else "use_encoding"
            raise refuse(name, False, f"must be True with --sum_codec={self.sum_codec}")

    def _settle_named_codec(self) -> None:
        bits = BITS_OF_CODEC.get(self.codec, 32)
        if self.grad_bits not in (32, bits):
            raise refuse("grad_bits", self.grad_bits, f"must not be set with --codec={self.codec}")
        if self.codec in BITS_OF_CODEC:
            object.__setattr__(self, "grad_bits", bits)
            object.__setattr__(self, "codec", "")

    @property
    def steps_per_exchange(self) -> int:
        """Steps between two exchanges."""
        return self.local_steps // self.local_fragments

    @property
    def codes_sums(self) -> bool:
        """Whether means of coded gradients are coded again on their way back."""
        return self.is_coded and self.sum_codec != EXACT

    @property
    def is_coded(self) -> bool:
        """Whether gradients of large variables travel as codes."""
        return bool(self.codec) or codec_of(self.grad_bits) in MAX_CODES

    @property
    def codec_name(self) -> str:
        """Name of the codec of large variables."""
        return self.codec or codec_of(self.grad_bits)

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

    labels_offset: int | None = None
    image_size: int = _data(
        at_least(1, -1, MAX_SIDE),
        -1,
        "side length of the net's input; -1 = as in the training",
        "pixels",
    )

    checkpoint_dir: str = _evaluation(
        TEXT,
        "/tmp/dataset_train",
        "folder of checkpoints, one checkpoint, or a weight file of TF-Slim or Keras",
    )
    eval_dir: str = _evaluation(TEXT, "/tmp/dataset_eval", "folder of the summaries")
    eval_interval_secs: float = _evaluation(
        number(above=True), 3600, "time between checks for a new checkpoint", "seconds"
    )
    run_once: bool = _evaluation(BOOLEAN, False, "evaluate the newest checkpoint once, then end")
    num_examples: int = _evaluation(
        at_least(1, -1, MAX_STEPS),
        50_000,
        "maximum number of images to evaluate; -1 = all",
        "images",
    )
    max_steps: int | None = _evaluation(
        at_least(1, high=MAX_STEPS), 370_000, "ends after the checkpoint of this step", "steps"
    )
    restore_avg_var: bool = _evaluation(
        BOOLEAN, True, "evaluate the moving averages of the weights"
    )
    tower: int = _evaluation(
        at_least(0, -1),
        -1,
        "accepted and checked, without effect: all towers share one copy of the weights",
    )
    device: str = _evaluation(
        TEXT, "/gpu:0", "/gpu:N or /cpu:0; the CPU is used if there is no GPU"
    )
