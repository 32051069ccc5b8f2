"""Settings of the whole process, made once before it computes anything."""

import os
from collections.abc import Sequence

import tensorflow as tf

from terngrad import allocator
from terngrad.training.choice import Choice, choose_kernels


def configure(
    *,
    deterministic: bool = True,
    intra_threads: int = 0,
    inter_threads: int = 0,
    log_placement: bool = False,
) -> None:
    """Sets TensorFlow's threads, and what the same bits in each run need: `terngrad.configure`.

    Nothing else in the library changes TensorFlow's settings. Call it before TensorFlow computes
    anything. It also turns Grappler's arithmetic optimization off, which changes the order in which
    floats of several nodes are added, and keeps freed memory in the process.

    Args:
      deterministic: turn TensorFlow's op determinism on. It demands seeds for random operations:
        call tf.keras.utils.set_random_seed.
      intra_threads: threads within one operation; 0 = TensorFlow's choice.
      inter_threads: operations at once; 0 = TensorFlow's choice.
      log_placement: log the device of every operation.
    """
    allocator.keep_freed()
    if intra_threads:
        tf.config.threading.set_intra_op_parallelism_threads(intra_threads)
    if inter_threads:
        tf.config.threading.set_inter_op_parallelism_threads(inter_threads)
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    tf.debugging.set_log_device_placement(log_placement)
    if deterministic:
        tf.config.experimental.enable_op_determinism()


def towers(count: int, *, on_cpu: bool = False) -> Sequence[str]:
    """Returns the names of `count` devices: GPUs, or logical CPU devices if there is no GPU.

    Raises:
      ValueError: there are GPUs, but fewer than `count`.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus and not on_cpu:
        if count > len(gpus):
            raise ValueError(f"--num_gpus={count}: this machine has {len(gpus)} GPUs.")
        return [f"/GPU:{i}" for i in range(count)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * count
    )
    if count > 1:
        print(f"No GPU is used: the {count} towers are logical CPU devices.")
    return [f"/CPU:{i}" for i in range(count)]


def kernels(*, on_gpu: bool = False) -> Choice:
    """Returns the kernels that TERNGRAD_KERNELS and TERNGRAD_SIMD choose; see `choose_kernels`."""
    wanted, path = os.environ.get("TERNGRAD_KERNELS", ""), os.environ.get("TERNGRAD_SIMD", "")
    return choose_kernels(wanted, path, on_gpu)
