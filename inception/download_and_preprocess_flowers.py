"""Downloads the flowers (218 MB, 3670 photographs of five kinds) and makes record files of them.

python -m inception.download_and_preprocess_flowers DATA_DIR

100 pictures of each kind are for validation. Without a network, --source_dir names a folder that
has flower_photos.tgz or the unpacked flower_photos. A run that was stopped goes on where it was.
"""

import functools

from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.conversion import DownloadConfig

POSITIONAL = ("data_dir",)


def main(values: FlagValues) -> None:
    """Downloads and converts."""
    config = table.read(DownloadConfig, values)
    with app.quiet_import():
        from slim.conversion import convert
    convert.convert("flowers", config.data_dir, source_dir=config.source_dir, **config.arguments())


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, DownloadConfig), positional=POSITIONAL)
