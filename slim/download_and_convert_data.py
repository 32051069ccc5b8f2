"""Makes record files of a data set, from a download or from files already on disk.

python -m slim.download_and_convert_data --dataset_name=mnist --dataset_dir=DIR
python -m slim.download_and_convert_data --dataset_name=flowers --dataset_dir=DIR --source_dir=S

The source folder holds the IDX files of MNIST or Fashion-MNIST (plain or .gz), the CIFAR-10 archive
or flower_photos.tgz (packed or unpacked), ImageNet's archives or folders, or for `images` a folder
of pictures for each class. A conversion that was stopped goes on with the missing files.
"""

import dataclasses
import functools

from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.checks import log_inert
from inception.flags.conversion import SharedConversionConfig
from inception.flags.table import BOOLEAN, TEXT, at_least, flag, one_of
from slim.datasets import dataset_factory


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Config(SharedConversionConfig):
    dataset_name: str = flag(
        "Data", one_of(*dataset_factory.MODULES), "mnist", "data set to convert"
    )
    dataset_dir: str | None = flag("Data", TEXT, None, "folder for the record files (required)")
    source_dir: str | None = flag(
        "Data", TEXT, None, "folder with the original files; else download"
    )
    shard: bool = flag("Data", BOOLEAN, False, "several record files for training")
    num_shards: int = flag("Data", at_least(1), 1000, "how many, with --shard", "files")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dataset_dir:
            raise table.refuse("dataset_dir", "", "must name a folder")
        table.refuse_missing(self, "source_dir")


def main(values: FlagValues) -> None:
    """Converts the data set that the flags name."""
    config = table.read(_Config, values)
    info = dataset_factory.MODULES[config.dataset_name].INFO
    shards = {}
    if not config.shard:
        log_inert({"num_shards": "no --shard"}, values)
    else:
        shards = {split: 1 for split in info.splits if split not in (info.num_shards or {})}
        shards["train"] = config.num_shards
    with app.quiet_import():
        from slim.conversion import convert
    convert.convert(
        config.dataset_name,
        config.dataset_dir,
        source_dir=config.source_dir,
        num_shards=shards,
        shards_flag="--num_shards",
        options=config.options(),
    )


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Config))
