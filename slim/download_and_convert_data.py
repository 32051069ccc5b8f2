"""Makes record files of MNIST or CIFAR-10, from a download or from files already on disk.

python -m slim.download_and_convert_data --dataset_name=mnist --dataset_dir=DIR
python -m slim.download_and_convert_data --dataset_name=cifar10 --dataset_dir=DIR --source_dir=S

The source folder holds MNIST's IDX files (plain or .gz; Fashion-MNIST's work too), or the CIFAR-10
archive, packed or unpacked. The conversion takes about ten seconds.
"""

from __future__ import annotations

import dataclasses
import functools

from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.table import BOOLEAN, TEXT, at_least, flag, one_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    dataset_name: str = flag("Data", one_of("mnist", "cifar10"), "mnist", "data set to convert")
    dataset_dir: str = flag("Data", TEXT, None, "folder for the record files (required)")
    source_dir: str | None = flag(
        "Data", TEXT, None, "folder with the original files; else download"
    )
    shard: bool = flag("Data", BOOLEAN, False, "several record files for training")
    num_shards: int = flag("Data", at_least(1), 1000, "how many, with --shard", "files")
    overwrite: bool = flag("Data", BOOLEAN, False, "replace record files that exist")


def main(values: FlagValues) -> None:
    """Converts the data set that the flags name."""
    options = table.read(_Options, values)
    if not options.dataset_dir:
        raise table.refuse("dataset_dir", "", "must name a folder")
    from slim.datasets import convert  # after the flags: TensorFlow takes seconds to load

    convert.convert(
        options.dataset_name,
        options.dataset_dir,
        source_dir=options.source_dir,
        num_shards=options.num_shards if options.shard else None,
        overwrite=options.overwrite,
    )


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
