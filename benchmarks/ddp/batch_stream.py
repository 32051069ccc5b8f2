"""Writes the batches of one worker of a training to standard output, for a program without
TensorFlow: images float32 [B, H, W, C], then labels int32 [B], in the machine's byte order.

python -m benchmarks.ddp.batch_stream --net=NET --dataset=DATASET --data_dir=DIR --max_steps=N
"""

import dataclasses
import sys

import tensorflow as tf

from benchmarks import report
from inception.flags import table
from inception.flags.configs import TrainConfig
from inception.flags.table import TEXT, at_least, flag
from inception.training.batches import naming_bad_records, training_batches
from inception.training.preparation import open_dataset
from inception.training.problem import problem_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamOptions(table.Checked):
    """The flags that all hosts of a training share."""

    dataset: str = flag("Data", TEXT, "cifar10", "data set")
    data_dir: str = flag("Data", TEXT, "/tmp/mydata", "folder of the record files")
    net: str = flag("Training", TEXT, "cifar10_alexnet", "net that takes the images")
    batch_size: int = flag("Training", at_least(1), 64, "images per host and step", "images")
    max_steps: int = flag("Training", at_least(1), 1000, "number of batches")
    seed: int = flag("Training", at_least(0), 1, "seed of order and augmentation")
    hosts: int = flag("Distributed", at_least(1), 2, "number of hosts", "hosts")

    def config(self) -> TrainConfig:
        """Returns the configuration of the suite's training with the same batches."""
        return TrainConfig(
            dataset_name=self.dataset,
            data_dir=self.data_dir,
            net=self.net,
            batch_size=self.batch_size,
            max_steps=self.max_steps,
            seed=self.seed,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(StreamOptions):
    task_id: int = flag("Distributed", at_least(0), 0, "index of the host whose batches these are")


def main(options: _Options) -> None:
    """Writes the batches."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    config = options.config()
    problem, dataset = problem_of(config), open_dataset(config)
    batches = training_batches(config, problem, dataset, 0, options.task_id, options.hosts)
    with naming_bad_records(problem, dataset):
        for images, labels in batches.take(options.max_steps):
            sys.stdout.buffer.write(images.numpy().tobytes())
            sys.stdout.buffer.write(labels.numpy().tobytes())


if __name__ == "__main__":
    report.run(main, _Options)
