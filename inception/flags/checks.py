"""Flags that have no effect beside others, or cannot be honoured; checked without TensorFlow."""

from collections.abc import Callable, Mapping

from absl.flags import FlagValues

from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.flags.table import refuse
from slim.nets import catalog
from terngrad.layout import BITS_OF_CODEC, FEEDBACK_CODES

# When flags have no effect, which flags, and what the user is told to be the reason.
_INERT: tuple[tuple[Callable[[TrainConfig], bool], tuple[str, ...], str], ...] = (
    (
        lambda c: not c.is_coded,
        (
            *("clip_factor", "scale_by", "sum_codec", "size_to_binarize", "quantize_logits"),
            *("use_encoding", "scaler_sharing", "draws"),
        ),
        "float gradients (--grad_bits=32 or 16)",
    ),
    (
        lambda c: c.local_steps == 1,
        ("local_overlap", "outer_learning_rate", "outer_momentum"),
        "--local_steps=1",
    ),
    (
        lambda c: c.codec_name in BITS_OF_CODEC and not c.codes_sums,
        ("outer_feedback",),
        "a codec without feedback",
    ),
    (lambda c: c.codec in FEEDBACK_CODES, ("draws",), "a codec that draws nothing"),
    (lambda c: c.grad_bits == 32 and not c.codec, ("floating_grad_epoch",), "--grad_bits=32"),
    (lambda c: c.optimizer in ("gd", "adam"), ("momentum",), "this --optimizer"),
    (
        lambda c: c.learning_rate_decay_type != "exponential",
        ("learning_rate_decay_factor",),
        "a decay type other than exponential",
    ),
    (
        lambda c: not c.decays_by_epochs,
        ("num_epochs_per_decay",),
        "a decay type that has no epochs",
    ),
    (
        lambda c: c.learning_rate_decay_type != "polynomial",
        ("learning_rate_power", "end_learning_rate"),
        "a decay type other than polynomial",
    ),
    (
        lambda c: not c.pretrained_model_checkpoint_path,
        ("checkpoint_exclude_scopes", "ignore_missing_vars"),
        "no pretrained weights",
    ),
    (
        lambda c: c.benchmark_mode,
        (
            *("data_dir", "split_data"),
            *("num_readers", "num_preprocess_threads", "input_queue_memory_factor"),
        ),
        "--benchmark_mode",
    ),
    (
        lambda c: c.net in catalog.NETS and not catalog.NETS[c.net].has_dropout,
        ("dropout_keep_prob",),
        "a --net without dropout",
    ),
)


def inert_flags(config: TrainConfig) -> dict[str, str]:
    """Flags that have no effect in this config, with what makes them so."""
    return {name: why for holds, names, why in _INERT if holds(config) for name in names}


def log_inert(inert: Mapping[str, str], values: FlagValues) -> None:
    """Prints a line for each flag that was set to another value than its default, in vain.

    Args:
      inert: see `inert_flags`.
      values: the parsed flags.
    """
    for name, why in inert.items():
        if name in values and values[name].present and values[name].value != values[name].default:
            print(f"--{name}: has no effect with {why}.")


def refuse_what_needs_all_workers(config: TrainConfig) -> None:
    """Raises ValueError if a flag has a value for which all workers must step together."""
    why = "needs --cross_replica_sync=True"
    if config.grad_bits == 1 and not config.use_encoding:
        raise refuse("use_encoding", False, why)
    if config.grad_bits == 1 and not config.scaler_sharing:
        raise refuse("scaler_sharing", False, f"{why}: asynchronous workers share no scales")
    if config.has_float_epochs:
        raise refuse("floating_grad_epoch", config.floating_grad_epoch, why)
    if config.local_steps > 1:
        raise refuse("local_steps", config.local_steps, why)
    if config.codes_sums:
        raise refuse("sum_codec", config.sum_codec, f"{why}: a ps sends parameters, no means")
    if config.profile_steps:
        raise refuse("profile_steps", ",".join(map(str, config.profile_steps)), why)


def refuse_beside_local_steps(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Raises ValueError if a flag has a value that needs an exchange in each step."""
    if config.local_steps == 1:
        return
    if (value := cluster.num_replicas_to_aggregate) != -1:
        why = f"must be -1 with --local_steps={config.local_steps}"
        raise refuse("num_replicas_to_aggregate", value, why)


def refuse_beside_coded_sums(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Raises ValueError if a flag has a value for which sums must travel as they are."""
    if not config.codes_sums:
        return
    if not may_code_sums(cluster):
        alone = "a share of the means belongs to one worker, without which no step can be made"
        why = f"must be -1 with --sum_codec={config.sum_codec}: {alone}"
        raise refuse("num_replicas_to_aggregate", cluster.num_replicas_to_aggregate, why)


def may_code_sums(cluster: ClusterConfig) -> bool:
    """Returns whether a cluster's flags go with coded sums."""
    return cluster.num_replicas_to_aggregate == -1
