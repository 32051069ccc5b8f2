r"""Evaluates the newest checkpoint of a folder, or one checkpoint, with the flags of TF-Slim.

python -m slim.eval_image_classifier --model_name=lenet --dataset_name=mnist --dataset_dir=DIR \
    --checkpoint_path=DIR
"""

from __future__ import annotations

import functools

from absl.flags import FlagValues

from inception import app, programs
from inception.flags import slim, table


def main(values: FlagValues) -> None:
    """Evaluates as the flags say."""
    with slim.own_names(slim.EvalFlags):
        programs.run_evaluation(table.read(slim.EvalFlags, values).config())


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, slim.EvalFlags))
