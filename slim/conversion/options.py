"""The options of a conversion; TensorFlow is not loaded."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Form:
    """The form in which pictures are stored.

    Attributes:
      raw_pixel: as uint8 pixels instead of JPEG.
      resize_dimen: side of the square that raw pixels are resized to; 0 = not resized.
    """

    raw_pixel: bool = False
    resize_dimen: int = 0

    def __str__(self) -> str:
        """Returns the words for it in the note of a conversion."""
        side = f" of side {self.resize_dimen}" if self.resize_dimen else ""
        return f"raw pixels{side}" if self.raw_pixel else "JPEG"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How to convert.

    Attributes:
      num_threads: threads that read images; None = one for each core.
      skip_broken: leave broken images out and list them in broken.txt; otherwise the first one is
        an error.
      overwrite: replace record files that exist.
    """

    num_threads: int | None = None
    skip_broken: bool = False
    overwrite: bool = False


JPEG = Form()
DEFAULT = Options()
