r"""Evaluates the newest checkpoint of a folder, or one checkpoint, with the flags of TF-Slim.

python -m slim.eval_image_classifier --model_name=lenet --dataset_name=mnist --dataset_dir=DIR \
    --checkpoint_path=DIR
"""

import functools

from absl.flags import FlagValues

from inception import app, flag_table, programs, slim_flags


def main(values: FlagValues) -> None:
    """Evaluates as the flags say."""
    programs.run_evaluation(flag_table.read(slim_flags.EvalFlags, values).config())


if __name__ == "__main__":
    app.run(
        main, functools.partial(flag_table.define, slim_flags.EvalFlags, dataset_split_name="test")
    )
