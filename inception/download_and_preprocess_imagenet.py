"""Makes record files of ImageNet, from its archives or folders on disk or from a download.

python -m inception.download_and_preprocess_imagenet DATA_DIR --source_dir=ARCHIVES

ARCHIVES holds ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar, ILSVRC2012_bbox_val_v3.tgz (which
also says the classes of the validation pictures), and ILSVRC2012_bbox_train_v2.tar.gz, or the
folders train and validation of their content. Archives are read as they are, without unpacking.

ImageNet is not for everybody to download. With an account at image-net.org, hand the addresses that
it shows to --train_url and the flags beside it: the archives go to DATA_DIR/download. A run that
was stopped goes on where it was.
"""

import dataclasses
import functools

from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.conversion import DownloadConfig
from inception.flags.table import Kind, flag, refuse
from slim.datasets import imagenet

POSITIONAL = ("data_dir",)

_SCHEMES = ("http://", "https://", "ftp://", "file://")
_ADDRESS = Kind(
    str,
    f"an address that begins with {', '.join(_SCHEMES[:-1])} or {_SCHEMES[-1]}",
    lambda url: not url or url.lower().startswith(_SCHEMES),  # "" is not set
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Config(DownloadConfig):
    train_url: str | None = flag(
        "Data", _ADDRESS, None, f"address of {imagenet.TRAIN_ARCHIVE} (138 GB)"
    )
    validation_url: str | None = flag(
        "Data", _ADDRESS, None, f"address of {imagenet.VALIDATION_ARCHIVE} (6.3 GB)"
    )
    train_boxes_url: str | None = flag(
        "Data", _ADDRESS, None, f"address of {imagenet.TRAIN_BOXES_ARCHIVE} (20 MB)"
    )
    validation_boxes_url: str | None = flag(
        "Data", _ADDRESS, None, f"address of {imagenet.VALIDATION_BOXES_ARCHIVE} (2 MB)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_dir and self.urls():
            raise refuse("source_dir", self.source_dir, "leaves nothing to download from addresses")

    def urls(self) -> dict[str, str]:
        """The addresses that are given, by the names of the archives."""
        given = {
            imagenet.TRAIN_ARCHIVE: self.train_url,
            imagenet.VALIDATION_ARCHIVE: self.validation_url,
            imagenet.TRAIN_BOXES_ARCHIVE: self.train_boxes_url,
            imagenet.VALIDATION_BOXES_ARCHIVE: self.validation_boxes_url,
        }
        return {name: url for name, url in given.items() if url}


def main(values: FlagValues) -> None:
    """Downloads what has an address, and converts."""
    config = table.read(_Config, values)
    with app.quiet_import():
        from slim.conversion import convert
    convert.convert(
        "imagenet",
        config.data_dir,
        source_dir=config.source_dir,
        download=functools.partial(imagenet.download_archives, config.urls()),
        **config.arguments(),
    )


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Config), positional=POSITIONAL)
