"""Settings of the whole process, which the library leaves alone unless it is asked."""

from terngrad.training import runtime


def configure(
    *, deterministic: bool = True, intra_threads: int = 0, inter_threads: int = 0
) -> None:
    """Sets TensorFlow's threads, and what the same bits in each run need, as the programs do.

    Nothing else in this library changes TensorFlow's settings. Call it before TensorFlow computes
    anything. It also turns Grappler's arithmetic optimization off, which changes the order in which
    floats of several nodes are added, and keeps freed memory in the process.

    Args:
      deterministic: turn TensorFlow's op determinism on. It demands seeds for random operations:
        call tf.keras.utils.set_random_seed.
      intra_threads: threads within one operation; 0 = TensorFlow's choice.
      inter_threads: operations at once; 0 = TensorFlow's choice.
    """
    runtime.configure(
        intra_threads=intra_threads,
        inter_threads=inter_threads,
        deterministic=deterministic,
        log_placement=False,
    )
