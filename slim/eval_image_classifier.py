r"""Evaluates the newest checkpoint of a folder, or one checkpoint, with the flags of TF-Slim.

python -m slim.eval_image_classifier --model_name=lenet --dataset_name=mnist --dataset_dir=DIR \
    --checkpoint_path=DIR
"""

from __future__ import annotations

import functools

from absl.flags import FlagValues

from inception import app, programs
from inception.flags import command_line, table, tf_slim


def main(values: FlagValues) -> None:
    """Evaluates as the flags say."""
    with tf_slim.own_names(tf_slim.EvalFlags):
        config = table.read(tf_slim.EvalFlags, values).config()
        command_line.log_inert_of_evaluation(values)
        programs.run_evaluation(config)


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, tf_slim.EvalFlags))
