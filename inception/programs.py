"""What the programs share: from the command line to a training or an evaluation."""

import functools
from collections.abc import Sequence

from inception import app, flags
from inception.flags import EvalConfig, TrainConfig


def train(dataset_name: str, description: str, argv: Sequence[str] | None = None) -> None:
    """Runs the program that trains on a data set; see `app.run`."""
    main = lambda values: run_training(flags.train_config(values, dataset_name))
    define = functools.partial(flags.define_train, dataset_name=dataset_name)
    app.run(main, define, argv, description=description)


def evaluate(dataset_name: str, description: str, argv: Sequence[str] | None = None) -> None:
    """Runs the program that evaluates on a data set; see `app.run`."""
    main = lambda values: run_evaluation(flags.eval_config(values, dataset_name))
    define = functools.partial(flags.define_eval, dataset_name=dataset_name)
    app.run(main, define, argv, description=description)


def run_training(config: TrainConfig) -> None:
    """Trains, once TensorFlow is loaded."""
    with app.telling_stop("stopped before the first step of this run; nothing is lost."):
        with app.quiet_import():
            from inception import train
        ready = train.prepare(config)
    if ready:
        train.train(ready)


def run_evaluation(config: EvalConfig) -> None:
    """Evaluates, once TensorFlow is loaded."""
    with app.quiet_import():
        from inception import evaluate
    evaluate.evaluate(config)
