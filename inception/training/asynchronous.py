"""A worker of asynchronous training: --cross_replica_sync=False.

The ps hold the parameters. A run is what goes on between its beginning, when the chief hands them
its state, and its end. The chief notes the run's name beside its checkpoints while it goes on: if
it is started again meanwhile, with the same settings, it takes up what the ps hold, unless its
checkpoint is newer; else it begins another run from its checkpoint, whatever the ps hold.
"""

import contextlib
import os
import signal
import sys

from inception.cluster.ps_network import security, tell_hosts
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.results.logs import ProgressBar, step_line
from inception.training import preparation
from inception.training import train as training_program
from inception.training.asynchronous_loop import AsynchronousLoop
from inception.training.asynchronous_ready import Ready, prepare
from inception.training.asynchronous_run_file import RunFile
from inception.training.batches import naming_bad_records
from inception.training.build import learning_rate
from inception.training.folders import hold_alone
from terngrad.asynchronous.client import Client, Pulled
from terngrad.asynchronous.gradient import Computed, GradientStep
from terngrad.asynchronous.states import pack, unpack
from terngrad.asynchronous.updates import state_bytes, state_groups
from terngrad.cluster.channel import MembershipError
from terngrad.cluster.membership import difference
from terngrad.codecs.codec import Codec, Payload
from terngrad.training import checkpoints
from terngrad.training.loop import StopRequest
from terngrad.training.progress import Progress
from terngrad.training.summaries import SummaryWriter

_LAST_UPDATES_SECS = 5.0  # for pushes that are on their way while ps 0 already has its updates


def train(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Trains as one worker until the run has `max_steps` updates.

    Raises:
      ValueError: flags, data, net, checkpoint or the workers do not fit; or a ps is lost.
      SystemExit: with a signal's status, after one stopped this worker or the run.
    """
    tell_hosts(cluster)
    tls = security(cluster)
    ready = prepare(config, cluster)
    workers, plan, stop = ready.workers, ready.plan, StopRequest()
    with contextlib.ExitStack() as stack:
        checkpoint = _restore(ready, stack) if workers.is_chief else None
        client = Client(
            cluster.ps_hosts,
            cluster.worker_hosts,
            workers.rank,
            cluster.worker_timeout_secs,
            ready.shares,
            cluster.pull_bits,
            plan.facts,
            tls,
            lambda line: print(line, flush=True),
            lambda: bool(stop.signal),
        )
        stack.callback(client.close)
        if workers.is_chief:
            _begin_or_go_on(ready, client, checkpoint)
        else:
            client.await_run()
        stack.enter_context(stop)
        try:
            pulled = _loop(ready, client, stop)
            where = _end(ready, client, pulled, stop)
        except (ValueError, OSError) as error:
            client.bye(stop=workers.is_chief)
            if stop.signal and isinstance(error, MembershipError):  # a ps is away
                unsaved = "; nothing is saved" if workers.is_chief else ""
                training_program.say(f"{stop.signal.name}: {error}{unsaved}.")
                sys.exit(128 + stop.signal)
            raise
        _tell_end(where, workers.is_chief, pulled, stop)


def _restore(ready: Ready, stack: contextlib.ExitStack) -> str | None:
    """Takes the chief's folder and newest checkpoint."""
    config = ready.config
    os.makedirs(config.train_dir, exist_ok=True)
    stack.callback(hold_alone(config.train_dir).close)
    checkpoint = preparation.restore_or_start(config, ready.training)
    if checkpoint:
        preparation.tell_differences(checkpoint, ready.settings)
    _tell_plan(ready)
    return checkpoint


def _tell_plan(ready: Ready) -> None:
    layout, shares = ready.training.layout, ready.shares
    codec = ready.config.codec or "ternary"
    pushed = sum(share.pushed_bytes for share in shares)
    pulled = sum(share.pulled_bytes(ready.plan.pull_bits) for share in shares)
    print(
        f"{ready.config.net}: {layout.size} parameters in {len(layout.names)} variables, "
        f"{len(layout.coded)} of them {codec}, on {len(shares)} ps; each of "
        f"{ready.workers.size} workers pushes {pushed} bytes a step and pulls {pulled}, without "
        "waiting for the others.",
        flush=True,
    )
    if ready.training.memory.variables and int(ready.training.step):
        preparation.tell_cleared(ready.config, "asynchronous workers do not save theirs")
    if layout.coded:
        print(f"Codes are written by {ready.training.kernel_choice}.", flush=True)


def _begin_or_go_on(ready: Ready, client: Client, checkpoint: str | None) -> None:
    """Hands the chief's state to the ps, unless they hold a newer one of the same run."""
    run_file = RunFile(ready.config.train_dir)
    training, plan = ready.training, ready.plan
    run, facts = run_file.read()
    changed = difference(plan.facts, facts, "this worker", "the run before") if run else ""
    step = int(training.step)
    standings = client.enter(run)
    held = min(standing.version for standing in standings)
    if run and all(standing.run == run for standing in standings) and held >= step:
        if not changed:
            print(f"The run goes on with what the ps hold, step {held}.", flush=True)
            return
        print(f"What the ps hold, step {held}, is left: {changed}.", flush=True)
    packed = pack(
        training.state,
        list(training.classifier.state.values()),
        training.layout,
        state_groups(plan),
        ready.shares,
    )
    # Before it begins: who is started again then finds this run, or none, but no run before it.
    run_file.write(plan.run, plan.facts)
    client.begin(plan, packed, step)
    print(f"A run begins at step {step}{f', {checkpoint}' if checkpoint else ''}.", flush=True)


def _loop(ready: Ready, client: Client, stop: StopRequest) -> Pulled:
    config, training, workers = ready.config, ready.training, ready.workers
    pulled = client.pull()
    compute = GradientStep(
        training.classifier,
        training.layout,
        training.runner.codecs,
        training.exchange,
        config.seed,
        workers.rank * config.nodes,
        ready.devices,
    )
    schedule = learning_rate(config, ready.steps_per_epoch)
    writer = None
    if workers.is_chief and config.save_summaries_secs > 0:
        writer = SummaryWriter(config.train_dir, training.layout, lambda codecs: _traffic(ready))
        writer.plan(schedule, pulled.version, config.max_steps)
    with ProgressBar(pulled.version, config.max_steps) as bar:

        def report(progress: Progress) -> None:
            try:
                print(step_line(progress, worker=workers.label), flush=True)
            except BrokenPipeError:  # nobody reads the lines any more: end, but lose nothing
                stop.signal = stop.signal or signal.SIGPIPE
            bar.update(progress)

        loop = AsynchronousLoop(
            config=config,
            client=client,
            compute=compute,
            layout=training.layout,
            shares=ready.shares,
            schedule=schedule,
            report=report,
            save=(lambda: _save(ready, client)) if workers.is_chief else None,
            observe=(lambda shown, step: _observe(ready, writer, shown, step)) if writer else None,
            writer=writer,
        )
        # Where a run was left off, each worker had made about as many steps.
        start = pulled.version // workers.size
        batches = training_program.worker_batches(config, ready.goal, ready.dataset, workers, start)
        with naming_bad_records(config, ready.goal, ready.dataset):
            pulled = loop.run(iter(batches), pulled, stop)
    if writer:
        writer.flush()
    return pulled


def _traffic(ready: Ready) -> list[Payload]:
    """Bytes of each variable that a worker pushes and pulls in a step."""
    by_variable: dict[int, Payload] = {}
    for codec in ready.training.runner.codecs:
        by_variable |= codec.payload(ready.config.nodes, ready.config.nodes)
    sizes = [v.shape.num_elements() for v in ready.training.classifier.variables]
    octets = ready.plan.pull_bits / 8
    return [Payload(by_variable[i].sent, size * octets) for i, size in enumerate(sizes)]


def _observe(ready: Ready, writer: SummaryWriter, computed: Computed, step: int) -> None:
    codecs: list[Codec] = list(ready.training.runner.codecs)
    zeros = {}
    for codec, encoded in zip(codecs, computed.encoded, strict=True):
        zeros |= codec.share_of_zeros(encoded)
    writer.gradients(computed.gradients, zeros, step)
    writer.traffic(codecs, step)
    writer.flush()


def _save(ready: Ready, client: Client, *, last: bool = False) -> str:
    """Writes a checkpoint of what the ps hold, the last perhaps; returns its path."""
    training = ready.training
    sizes = [state_bytes(ready.plan, share) for share in ready.shares]
    step, contents = client.fetch(sizes, last=last)
    unpack(
        contents,
        training.state,
        list(training.classifier.state.values()),
        training.layout,
        state_groups(ready.plan),
        ready.shares,
    )
    training.step.assign(step)
    config = ready.config
    return checkpoints.save(
        config.train_dir, training.state, step, config.keep_checkpoints, ready.settings
    )


def _end(ready: Ready, client: Client, pulled: Pulled, stop: StopRequest) -> str:
    """Saves, and tells the ps; returns where the checkpoint is."""
    if not ready.workers.is_chief:
        client.bye(done=pulled.finished)
        return "checkpoints are the chief's"
    if pulled.finished:
        client.await_updates(ready.config.max_steps, _LAST_UPDATES_SECS)
    path = _save(ready, client, last=True)
    # A ps that did not hear it goes on with the run, and so does who is started again here.
    if client.bye(done=pulled.finished, stop=bool(stop.signal), saved=True, looks=True):
        RunFile(ready.config.train_dir).remove()
    return path


def _tell_end(where: str, is_chief: bool, pulled: Pulled, stop: StopRequest) -> None:
    """Says why this worker ends."""
    if pulled.finished:
        training_program.say(f"Finished training at step {pulled.version}: {where}")
        return
    if stop.signal:
        rest = training_program.how_to_go_on(where) if is_chief else "the others go on"
        training_program.say(f"{stop.signal.name}: {rest}.")
    elif pulled.saved:
        training_program.say("The chief was asked to stop and has saved; all workers end.")
    else:
        raise ValueError("The chief has ended the run without saving it; its log says why.")
    sys.exit(128 + (stop.signal or signal.SIGTERM))
