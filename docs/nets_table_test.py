"""The table of the nets states what the nets are."""

import re

from docs.markdown import REPO
from slim.nets.catalog import NETS
from slim.nets.testing import PUBLISHED

_ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (\d+) \| (\d+) \| ([\d,]+) \| (\w+) \| .+ \|$", re.M)


def test_the_table_lists_every_net_with_its_size_parameters_and_preprocessing():
    text = (REPO / "docs" / "one-machine.md").read_text().partition("\n## Nets\n")[2]
    listed = {}
    for names, *columns in _ROW.findall(text.partition("\n## ")[0]):
        listed |= {name.strip("`"): tuple(columns) for name in names.split(", ")}
    assert listed == {
        name: (
            str(spec.image_size),
            str(spec.min_image_size),
            f"{PUBLISHED[name].parameters:,}",
            spec.preprocessing,
        )
        for name, spec in NETS.items()
    }
