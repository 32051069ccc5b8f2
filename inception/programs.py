"""From the command line of a program to a training, an evaluation or a parameter server."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence

from absl.flags import FlagValues

from inception import app
from inception.flags import checks, command_line, large_batch
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import EvalConfig, TrainConfig
from inception.flags.large_batch import LargeBatch
from inception.training import refusals
from terngrad import outputs
from terngrad.cluster.managed.role import LAUNCHED

# For several workers: these name a lost one; TensorFlow would add many lines of its own.
_LOG_LEVEL = "3"
_NOTHING_LOST = "stopped before the first step of this run; nothing is lost."


def train(dataset_name: str, description: str, argv: Sequence[str] | None = None) -> None:
    """Runs a program that trains on one machine.

    Args:
      dataset_name: the default of --dataset_name; "" = it must be set.
      description: see `app.run`.
      argv: see `app.run`.
    """
    main = lambda values: run_training(command_line.train_config(values))
    define = functools.partial(command_line.define_train, dataset_name=dataset_name)
    app.run(main, define, argv, description=description)


def evaluate(dataset_name: str, description: str, argv: Sequence[str] | None = None) -> None:
    """Runs a program that evaluates; see `train`."""
    main = lambda values: run_evaluation(command_line.eval_config(values))
    define = functools.partial(command_line.define_eval, dataset_name=dataset_name)
    app.run(main, define, argv, description=description)


def train_distributed(
    dataset_name: str, description: str, argv: Sequence[str] | None = None
) -> None:
    """Runs a program that is one worker, or ps, of a training; see `train`."""

    def main(values: FlagValues) -> None:
        cluster = command_line.cluster_config(values, os.environ)
        take_part(cluster, values, command_line.distributed_config)

    define = functools.partial(command_line.define_distributed, dataset_name=dataset_name)
    app.run(main, define, argv, description=description)


def take_part(
    cluster: ClusterConfig,
    values: FlagValues,
    read: Callable[[FlagValues], tuple[TrainConfig, LargeBatch | None]],
    own_names: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> None:
    """Runs one worker, or ps, of a training.

    Args:
      cluster: which process this is.
      values: the parsed flags.
      read: returns the configs of the flags.
      own_names: a context in which errors name flags as the program does.
    """
    outputs.protect()
    is_ps = cluster.job_name == "ps"
    with _reporting_failure(cluster), own_names():
        config, large_batches = read(values)
        if cluster.ps_hosts:
            # Errors here are seconds earlier than after TensorFlow is loaded.
            from inception.cluster.joining import join_config

            join_config(cluster).check()
        if is_ps:
            refusals.check_train_dir(config)
        else:
            _refuse(config, cluster)
    if is_ps:
        serve(config, cluster)
    elif cluster.cross_replica_sync:
        run_worker(config, large_batches, cluster)
    else:
        run_asynchronous_worker(config, large_batches, cluster)


@contextlib.contextmanager
def _reporting_failure(cluster: ClusterConfig) -> Iterator[None]:
    """Reports to the other workers if the block, in which this one joins them, fails."""
    try:
        yield
    except BaseException:
        from inception.cluster.joining import join_config
        from terngrad.library.failures import reporting_failure

        with reporting_failure(join_config(cluster)):
            raise


def run_worker(
    config: TrainConfig, large_batches: LargeBatch | None, cluster: ClusterConfig
) -> None:
    """Trains as one of several workers; without `large_batches` at the config's own rates."""
    with _reporting_failure(cluster):
        with app.quiet_import(_LOG_LEVEL):
            from inception.cluster import joining
            from inception.training import preparation, settings, train
            from inception.training.out_of_memory import naming_out_of_memory
        devices = preparation.set_up(config)
    with joining.join(cluster) as group, naming_out_of_memory():
        if large_batches:
            config = large_batch.apply(config, large_batches, group.batches_per_step)
        probes = {"predict": str(cluster.predict)}  # the others would wait for one without it
        group.compare(settings.configuration(config, group.size) | probes)
        prepared = preparation.prepare(config, group, cluster, devices)
        if prepared:
            train.train(prepared)


def run_asynchronous_worker(
    config: TrainConfig, large_batches: LargeBatch | None, cluster: ClusterConfig
) -> None:
    """Trains as one of several workers that do not wait for each other."""
    with _reporting_failure(cluster), app.quiet_import(_LOG_LEVEL):
        from inception.training import asynchronous
        from inception.training.out_of_memory import naming_out_of_memory
    with naming_out_of_memory():
        if large_batches:  # an update comes from the batch of one worker
            config = large_batch.apply(config, large_batches, 1)
        asynchronous.train(config, cluster)


def _refuse(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Refuses flags of one of several workers; a launcher does not say yet which is the chief."""
    if not cluster.cross_replica_sync:
        checks.refuse_what_needs_all_workers(config)
    checks.refuse_beside_local_steps(config, cluster)
    checks.refuse_beside_coded_sums(config, cluster)
    is_chief = cluster.engine not in LAUNCHED and cluster.task_id == 0
    refusals.check_training(config, is_alone=False, is_chief=is_chief)


def serve(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Serves as a ps: adds what workers push, or holds their parameters, until they have ended."""
    with app.quiet_import(_LOG_LEVEL):
        from inception.training import serving
    serving.serve(config, cluster)


def run_training(config: TrainConfig) -> None:
    """Trains, once TensorFlow is loaded."""
    outputs.protect()
    refusals.check_training(config)
    with app.reporting_stop(_NOTHING_LOST):
        with app.quiet_import():
            from inception.training import preparation, train
            from inception.training.out_of_memory import naming_out_of_memory
        with naming_out_of_memory():
            prepared = preparation.prepare(config)
    if prepared:
        with naming_out_of_memory():
            train.train(prepared, _NOTHING_LOST)


def run_evaluation(config: EvalConfig) -> None:
    """Evaluates, once TensorFlow is loaded."""
    refusals.check_evaluation(config)
    with app.quiet_import():
        from inception.training import evaluate
        from inception.training.out_of_memory import naming_out_of_memory
    with naming_out_of_memory():
        evaluate.evaluate(config)
