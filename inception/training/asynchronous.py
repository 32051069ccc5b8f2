"""A worker of asynchronous training: --cross_replica_sync=False."""

import contextlib
import signal
import sys
import threading
from collections.abc import Sequence

from inception.cluster.joining import join_config, log_hosts
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.training.learning_rate import learning_rate
from inception.training.looping import run_loop, say
from inception.training.preparation import PreparedTraining, prepare, worker_batches
from inception.training.train import how_to_go_on
from terngrad.asynchronous.chief import Chief, RunFile, States
from terngrad.asynchronous.client import Client, Pulled
from terngrad.asynchronous.copies import max_coded_bytes
from terngrad.asynchronous.gradient import GradientStep
from terngrad.asynchronous.plan import state_groups
from terngrad.asynchronous.stepper import AsynchronousStepper
from terngrad.cluster.errors import MembershipError
from terngrad.codecs.codec import Codec, Payload
from terngrad.layout import FLOAT, Layout
from terngrad.library.failures import reporting_failure
from terngrad.library.group import Group
from terngrad.library.join_config import JoinConfig
from terngrad.training import checkpoints
from terngrad.training.reduction import Reduction
from terngrad.training.signals import StopRequest
from terngrad.training.summaries import Counted

_POLL_SECS = 1.0


def train(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Trains as one worker until the run has `max_steps` updates.

    Raises:
      ValueError: flags, data, net, checkpoint or workers do not fit each other, or a ps is lost.
      SystemExit: with a signal's status, after a signal stopped this worker or the run.
    """
    log_hosts(cluster)
    joining = join_config(cluster)
    joining.check()
    joining.log_interface()
    hosts = cluster.worker_hosts
    group = Group(cluster.task_id, len(hosts), hosts=hosts, aggregated=1)
    with reporting_failure(joining):
        prepared = prepare(config, group, cluster)
    stop = StopRequest(stuck=lambda number, is_over: _cut_silent_calls(client, is_over))
    with contextlib.ExitStack() as stack:
        if prepared.lock:
            stack.callback(prepared.lock.close)
        client = _client(prepared, joining, stop)
        stack.callback(client.close)
        chief = _chief(prepared, client) if group.is_chief else None
        if chief:
            with reporting_failure(joining):
                chief.begin_or_resume(int(prepared.training.step), prepared.checkpoint)
        else:
            client.await_run()
        saver = _Saver(prepared, chief) if chief else None
        stack.enter_context(stop)
        try:
            pulled = _loop(prepared, client, saver, stop)
            where = _end(client, saver, pulled, stop)
        except (ValueError, OSError) as error:
            client.leave(stop=group.is_chief)
            if stop.signal and isinstance(error, MembershipError):  # a ps is away
                unsaved = _unsaved(prepared, cluster) if group.is_chief else ""
                say(f"{stop.signal.name}: {error}{unsaved}.")
                sys.exit(128 + stop.signal)
            raise
        _log_end(where, group.is_chief, pulled, stop)


def _cut_silent_calls(client: Client, is_over: threading.Event) -> None:
    """Ends the waits of this worker, which was asked to end, for a ps that hangs."""
    while not is_over.wait(_POLL_SECS):
        client.cut_silent_calls()


def _unsaved(prepared: PreparedTraining, cluster: ClusterConfig) -> str:
    """Returns a text for the log if the chief cannot get the state of the ps."""
    newest = checkpoints.latest_checkpoint(prepared.config.train_dir)
    step = checkpoints.step_of(newest) if newest else 0
    rest = "; the same command continues from the snapshots of the ps"
    return f"; not saved since step {step}{rest if cluster.ps_snapshot_steps else ''}"


def _client(prepared: PreparedTraining, joining: JoinConfig, stop: StopRequest) -> Client:
    sharded, is_stopped = prepared.sharded, lambda: bool(stop.signal)
    plan = sharded.plan
    return Client(
        joining.connect,
        sharded.shards,
        plan.pull_bits,
        plan.configuration,
        _log,
        is_stopped,
        sharded.change_codes,
    )


def _chief(prepared: PreparedTraining, client: Client) -> Chief:
    training, plan = prepared.training, prepared.sharded.plan
    statistics = list(training.classifier.state.values())
    groups = state_groups(plan)
    states = States(training.state, statistics, training.layout, groups, prepared.sharded.shards)
    return Chief(client, plan, states, RunFile(prepared.config.train_dir), _log)


def _log(line: str) -> None:
    print(line, flush=True)


class _Saver:
    """Saves the state of the ps.

    Attributes:
      chief: what fetches that state.
    """

    def __init__(self, prepared: PreparedTraining, chief: Chief) -> None:
        """Saves nothing yet."""
        self._prepared, self.chief = prepared, chief
        self._last = chief.digest, prepared.checkpoint  # of the last save: state and path

    def save(self, *, last: bool = False) -> str:
        """Writes a checkpoint unless no update came since the last one; returns its path."""
        config, training = self._prepared.config, self._prepared.training
        step = self.chief.fetch(last=last)
        digest, path = self._last
        if not path or self.chief.digest != digest:
            training.step.assign(step)
            path = checkpoints.save(
                config.train_dir,
                training.state,
                step,
                config.keep_checkpoints,
                self._prepared.settings,
            )
            self._last = self.chief.digest, path
        return path


def _loop(
    prepared: PreparedTraining, client: Client, saver: _Saver | None, stop: StopRequest
) -> Pulled:
    """Trains; returns the last pulled parameters."""
    config, training, group = prepared.config, prepared.training, prepared.group
    codecs = training.codecs
    pulled = client.pull()
    # In a continued run, each worker has made about as many steps.
    start = pulled.version // group.size
    stepper = AsynchronousStepper(
        client=client,
        compute=GradientStep(training.classifier, training.layout, _reduction(prepared)),
        layout=training.layout,
        shards=prepared.sharded.shards,
        packing=training.kernel_choice.kernels.packing,
        codecs=codecs,
        batches=iter(worker_batches(prepared, start)),
        batch_size=config.batch_size,
        schedule=learning_rate(config, prepared.steps_per_epoch),
        pulled=pulled,
    )
    save = lambda step: saver.save() if saver else None
    traffic = lambda codecs: _traffic(prepared, codecs)
    counted = lambda: Counted(stepper.own_step, client.bytes_pushed, client.bytes_pulled)
    before = counted()
    codes_pulls = prepared.sharded.plan.pull_codec != FLOAT
    counts = counted if training.layout.coded or codes_pulls else None
    run_loop(prepared, stepper, save, traffic, stop, saves_last=False, counted=counts)
    _log_traffic(before, counted(), training.layout)
    return stepper.pulled


def _reduction(prepared: PreparedTraining) -> Reduction:
    config, training = prepared.config, prepared.training
    return Reduction(
        training.codecs,
        training.exchange,
        training.step,
        config.seed,
        prepared.devices,
        training.memories[0],  # without local steps there is one fragment
        first_node=prepared.group.rank * config.nodes,  # among those of all workers
        memory_decay=config.outer_feedback,
    )


def _log_traffic(before: Counted, after: Counted, layout: Layout) -> None:
    """Prints what a step of this worker pushed and pulled."""
    steps = after.steps - before.steps
    if not steps:
        return
    pushed, pulled = (after.sent - before.sent) / steps, (after.received - before.received) / steps
    say(
        f"Pushed {pushed:.0f} bytes a step, {8 * pushed / layout.size:.3g} bits a parameter, and "
        f"pulled {pulled:.0f}, {8 * pulled / layout.size:.3g} bits a parameter, on average."
    )


def _traffic(prepared: PreparedTraining, codecs: Sequence[Codec]) -> list[Payload]:
    """Returns the most bytes that a worker pushes and pulls in a step, by variable."""
    by_variable: dict[int, Payload] = {}
    for codec in codecs:
        by_variable |= codec.payload(prepared.config.nodes, prepared.config.nodes)
    sizes = [v.shape.num_elements() for v in prepared.training.classifier.variables]
    plan, shards = prepared.sharded.plan, prepared.sharded.shards
    if plan.pull_codec == FLOAT:
        pulled = [size * plan.pull_bits / 8 for size in sizes]
    else:
        coded = max_coded_bytes(plan, shards)
        pulled = [coded[i] for i in range(len(sizes))]
    return [Payload(by_variable[i].sent, octets) for i, octets in enumerate(pulled)]


def _end(client: Client, saver: _Saver | None, pulled: Pulled, stop: StopRequest) -> str:
    """Saves, and reports it to the ps; returns where the checkpoint is, for the log."""
    if saver is None:
        client.leave(done=pulled.finished)
        return "checkpoints are the chief's"
    if pulled.finished:
        saver.chief.await_last_updates()
    path = saver.save(last=True)
    saver.chief.end(done=pulled.finished, stopped=bool(stop.signal))
    return path


def _log_end(where: str, is_chief: bool, pulled: Pulled, stop: StopRequest) -> None:
    """Prints why this worker ends."""
    if pulled.finished:
        say(f"Finished training at step {pulled.version}: {where}")
        return
    if stop.signal:
        rest = how_to_go_on(where) if is_chief else "the others continue"
        say(f"{stop.signal.name}: {rest}.")
    elif pulled.saved:
        say("The chief was asked to stop and has saved; all workers end.")
    else:
        raise ValueError("The chief has ended the run without saving it; its log says why.")
    sys.exit(128 + (stop.signal or signal.SIGTERM))
