"""The training loop with a program's additions: lines, progress bar, summaries, profile."""

import functools
from collections.abc import Callable, Sequence

from inception.results.logs import ProgressBar, Spinner, step_line
from inception.training.batches import naming_bad_records
from inception.training.learning_rate import learning_rate
from inception.training.preparation import PreparedTraining
from terngrad.codecs.codec import Codec, Payload
from terngrad.training import checkpoints
from terngrad.training.loop import Loop
from terngrad.training.signals import StopRequest
from terngrad.training.stepper import Stepper
from terngrad.training.summaries import Counted, SummaryWriter
from terngrad.training.timing import Cadence, Progress


def run_loop(
    prepared: PreparedTraining,
    stepper: Stepper,
    save: Callable[[int], str | None],
    traffic: Callable[[Sequence[Codec]], Sequence[Payload]],
    stop: StopRequest,
    *,
    saves_last: bool = True,
    counted: Callable[[], Counted] | None = None,
    before_search: Callable[[], str] = lambda: "",
) -> tuple[str | None, bool]:
    """Trains from the stepper's step on; for arguments and results see `Loop`.

    `traffic` returns the bytes that a worker exchanges in a step, by variable; `counted`, see
    `SummaryWriter`, what it has exchanged, if its exchange does not count that; `before_search` is
    called before the records are searched for a bad one.

    Raises:
      ValueError: a record is bad, or the training diverged.
    """
    config, group, is_chief = prepared.config, prepared.group, prepared.group.is_chief
    nodes = "1 node" if config.nodes == 1 else f"{config.nodes} nodes"
    # A large net takes minutes until its first step.
    print(f"Building the training step of {config.net} for {nodes} ...", flush=True)
    with ProgressBar(stepper.step, config.max_steps) as bar, Spinner() as spinner:

        def report(progress: Progress) -> None:
            print(step_line(progress, worker=group.rank if group.size > 1 else None), flush=True)
            bar.update(progress)

        loop = Loop(
            stepper=stepper,
            cadence=_cadence(prepared),
            report=report,
            save=save,
            saves_last=saves_last,
            saves_soon=prepared.saves_soon,
            writer=_writer(prepared, stepper.step, traffic, counted),
            profile_dir=config.train_dir,
            first_step_made=spinner.stop,
            unsaved=_newest_or_none(config.train_dir) if is_chief else "see the chief's log",
        )
        before = _counted(prepared)
        with naming_bad_records(prepared.problem, prepared.dataset, before_search):
            ended = loop.run(prepared.checkpoint, stop)
        _log_sent(prepared, before)
        return ended


def _counted(prepared: PreparedTraining) -> Counted:
    exchange = prepared.training.exchange
    sent, received = int(exchange.bytes_sent), int(exchange.bytes_received)
    return Counted(int(exchange.steps) * prepared.config.steps_per_exchange, sent, received)


def _log_sent(prepared: PreparedTraining, before: Counted) -> None:
    """Logs how many bytes a step took where codes are packed: losses and statistics, too."""
    training, after = prepared.training, _counted(prepared)
    if not (training.exchange.packs_codes and training.layout.coded and after.steps > before.steps):
        return
    sent = (after.sent - before.sent) / (after.steps - before.steps)
    bits = 8 * sent / training.layout.size
    say(f"Sent {sent:.0f} bytes a step, {bits:.3g} bits a parameter, on average.")


def say(text: str) -> None:
    """Prints a line at once."""
    print(text, flush=True)


def _cadence(prepared: PreparedTraining) -> Cadence:
    config = prepared.config
    return Cadence(
        max_steps=config.last_step,
        log_every=config.log_every_n_steps,
        save_every=config.save_iter,
        save_secs=config.save_interval_secs,
        summary_secs=config.save_summaries_secs,
        profile=config.profile_steps if prepared.group.is_chief else None,
    )


def _writer(
    prepared: PreparedTraining,
    step: int,
    traffic: Callable[[Sequence[Codec]], Sequence[Payload]],
    counted: Callable[[], Counted] | None,
) -> SummaryWriter | None:
    config = prepared.config
    if not (prepared.group.is_chief and config.save_summaries_secs > 0):
        return None
    if prepared.training.exchange.packs_codes:
        counted = functools.partial(_counted, prepared)
    writer = SummaryWriter(config.train_dir, prepared.training.layout, traffic, counted=counted)
    if config.max_steps:
        writer.plan(learning_rate(config, prepared.steps_per_epoch), step, config.max_steps)
    return writer


def _newest_or_none(train_dir: str) -> str:
    return checkpoints.latest_checkpoint(train_dir) or "none was written yet"
