"""The programs of docs/spark.md train on rows, also with a parameter server, and infer."""

import numpy as np
import pytest

from docs import markdown
from terngrad.testing import spark as sparks

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

_PAGE = markdown.REPO / "docs" / "spark.md"


@pytest.mark.parametrize("num_ps", [0, 1])
def test_the_page_trains_and_infers(tmp_path, num_ps):
    blocks = [b.text for b in markdown.blocks(_PAGE) if b.marker == "tested: docs/spark_test.py"]
    places = f"num_workers={2 - num_ps}, num_ps={num_ps}"
    text = "".join(blocks).replace("/shared/", f"{tmp_path}/")
    assert "num_workers=2" in text
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    x = rng.normal(size=(300, 20)) + 3 * np.eye(3, 20)[labels]
    with sparks.session() as spark:
        rows = [(each.tolist(), int(label)) for each, label in zip(x, labels, strict=True)]
        frame = spark.createDataFrame(rows, "x array<double>, y long")
        exec(text.replace("num_workers=2", places), {"spark": spark, "frame": frame})
        found = spark.read.parquet(str(tmp_path / "results"))
        assert dict(found.dtypes) == {"label": "int", "probability": "float"}
        assert found.count() == 300
