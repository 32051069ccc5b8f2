"""From the command line of a program to a training, an evaluation or a parameter server."""

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Iterator, Sequence

from absl import flags as absl_flags

from inception import app
from inception.flags import checks, command_line, large_batch, table
from inception.flags.cluster import LAUNCHED, ClusterConfig
from inception.flags.configs import EvalConfig, TrainConfig
from inception.flags.large_batch import LargeBatch
from inception.training import refusals
from terngrad.service import compiled, descriptors, handshakes, reading

_UNBEGUN = "stopped before the first step of this run; nothing is lost."


def train(dataset_name: str, description: str, argv: Sequence[str] | None = None) -> None:
    """Runs the program that trains on a data set; see `app.run`."""
    main = lambda values: run_training(command_line.train_config(values, dataset_name))
    define = functools.partial(command_line.define_train, dataset_name=dataset_name)
    app.run(main, define, argv, description=description)


def evaluate(dataset_name: str, description: str, argv: Sequence[str] | None = None) -> None:
    """Runs the program that evaluates on a data set; see `app.run`."""
    main = lambda values: run_evaluation(command_line.eval_config(values, dataset_name))
    define = functools.partial(command_line.define_eval, dataset_name=dataset_name)
    app.run(main, define, argv, description=description)


def train_distributed(
    dataset_name: str, description: str, argv: Sequence[str] | None = None
) -> None:
    """Runs one worker, or ps, of a training on a data set; see `app.run`."""

    def main(values: absl_flags.FlagValues) -> None:
        cluster = command_line.cluster_config(values, os.environ)
        if cluster.job_name == "ps":
            reading.wait_for_frames()  # before the first import of grpc, which follows
        if cluster.ps_hosts:
            compiled.descriptor()  # without it nobody can be told anything
        with _told_to_others(cluster):
            config = command_line.train_config(values, dataset_name)
            checks.tell_inert(cluster.inert_flags, values)
            if cluster.ps_hosts:
                # Errors here are seconds earlier than after TensorFlow is loaded.
                from inception.cluster import network

                network.security(cluster)
            large_batches = table.read(LargeBatch, values)
        if cluster.job_name == "ps":
            serve(config, cluster)
            return
        checks.tell_inert(large_batch.inert_flags(large_batches), values)
        run = run_worker if cluster.cross_replica_sync else run_asynchronous_worker
        run(config, large_batches, cluster)

    def define(values: absl_flags.FlagValues) -> None:
        command_line.define_train(values, dataset_name)
        table.define(LargeBatch, values)
        table.define(ClusterConfig, values)

    # The other workers name a lost one; TensorFlow would add many lines of its own.
    app.run(main, define, argv, description=description, log_level="3")


@contextlib.contextmanager
def _told_to_others(cluster: ClusterConfig) -> Iterator[None]:
    """Tells the other workers if the block fails, in which this one has not joined them yet."""
    try:
        yield
    except BaseException as error:
        from inception.cluster import failures  # loads grpc

        failures.tell(cluster, error)
        raise


def run_worker(
    config: TrainConfig, large_batches: LargeBatch | None, cluster: ClusterConfig
) -> None:
    """Trains as one of several workers; without `large_batches` at the config's own rates."""
    config = dataclasses.replace(config, save_interval_secs=cluster.save_interval_secs)
    with _told_to_others(cluster):
        _refuse(config, cluster)
        with app.quiet_import():
            from inception.cluster.join import joined
            from inception.training import preparation, settings, train
            from inception.training.shortage import naming_shortage
    with joined(cluster) as workers, naming_shortage():
        if large_batches:
            config = large_batch.apply(config, large_batches, workers.batches_per_step)
        probes = {"predict": str(cluster.predict)}  # one that did not would let the others wait
        workers.agree(settings.facts(config, workers.size) | probes)
        ready = preparation.prepare(config, workers, probes=cluster.predict)
        if ready:
            train.train(ready)


def run_asynchronous_worker(
    config: TrainConfig, large_batches: LargeBatch, cluster: ClusterConfig
) -> None:
    """Trains as one of several workers that do not wait for each other."""
    config = dataclasses.replace(config, save_interval_secs=cluster.save_interval_secs)
    with _told_to_others(cluster):
        checks.refuse_what_needs_all_workers(config)
        _refuse(config, cluster)
        with app.quiet_import():
            from inception.training import asynchronous
            from inception.training.shortage import naming_shortage
    with naming_shortage():
        # An update comes from the batch of one worker, however many there are.
        asynchronous.train(large_batch.apply(config, large_batches, 1), cluster)


def _refuse(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Refuses flags of one of several workers; a launcher does not say yet which is the chief."""
    is_chief = cluster.engine not in LAUNCHED and cluster.task_id == 0
    refusals.check_training(config, is_alone=False, is_chief=is_chief)


def serve(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Serves as a ps: adds what workers push, or holds their parameters, until they have ended."""
    with contextlib.ExitStack() as stack:
        if cluster.tls_ca and os.environ.get("GRPC_VERBOSITY") == "ERROR":
            os.environ["GRPC_VERBOSITY"] = "INFO"  # this level reports failed handshakes
        stack.enter_context(app.filtered_stderr([sys.executable, "-m", handshakes.__name__]))
        descriptors.raise_limit()
        with app.quiet_import():
            from inception.serving import serve as ps
        ps.serve(config, cluster)


def run_training(config: TrainConfig) -> None:
    """Trains, once TensorFlow is loaded."""
    refusals.check_training(config)
    with app.telling_stop(_UNBEGUN):
        with app.quiet_import():
            from inception.training import preparation, train
            from inception.training.shortage import naming_shortage
        with naming_shortage():
            ready = preparation.prepare(config)
    if ready:
        with naming_shortage():
            train.train(ready, _UNBEGUN)


def run_evaluation(config: EvalConfig) -> None:
    """Evaluates, once TensorFlow is loaded."""
    refusals.check_evaluation(config)
    with app.quiet_import():
        from inception.training import evaluate
        from inception.training.shortage import naming_shortage
    with naming_shortage():
        evaluate.evaluate(config)
