"""The picture of augmented images is drawn, and shows what nets are trained with."""

import matplotlib.image
import numpy as np
import pytest

from docs import draw_augmentation


def test_the_picture_is_drawn_and_that_of_the_page_is_small(tmp_path):
    path = tmp_path / "augmentation.png"
    draw_augmentation.draw(str(path))
    assert (
        matplotlib.image.imread(path).shape == matplotlib.image.imread(draw_augmentation.PATH).shape
    )
    assert draw_augmentation.PATH.stat().st_size < 300_000


@pytest.mark.parametrize("kind", draw_augmentation.KINDS)
def test_eight_versions_differ_from_each_other_at_the_size_of_the_nets_input(kind):
    _, *augmented = draw_augmentation.versions(kind)
    size = draw_augmentation.KINDS[kind]
    assert {image.shape for image in augmented} == {(size, size, 3)}
    assert len({image.tobytes() for image in augmented}) == draw_augmentation.VERSIONS
    assert all(np.ptp(image) > 100 for image in augmented)
