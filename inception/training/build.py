"""From a config to the parts of a training: net, codecs, exchange, optimizer, compiled steps."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception.flags.configs import TrainConfig
from inception.flags.table import naming, refuse
from inception.training.batches import LastBatch
from inception.training.learning_rate import learning_rate
from inception.training.problem import Problem, net_settings
from slim import pretrained_weights
from slim.nets import catalog, nets_factory
from terngrad.codecs.codec import Codec, Payload
from terngrad.codecs.factory import make_codecs, payloads
from terngrad.codecs.sum_codec import sum_codecs
from terngrad.exchange.connection import Connection
from terngrad.exchange.exchange import Exchange
from terngrad.layout import DRAWS, EXACT, Layout, Policy, make_layout
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.training import runtime
from terngrad.training.averages import MovingAverages
from terngrad.training.classifier import Classifier, IdleClassifier
from terngrad.training.local_step import InnerOptimizer, LocalStep, keep_inner_state, make_fragments
from terngrad.training.memory import Memory
from terngrad.training.nodes import spread
from terngrad.training.optimizers import Momentum, Optimizer, make_optimizer
from terngrad.training.reduction import Reduction, make_exchange
from terngrad.training.runner import Runner
from terngrad.training.runtime import Choice
from terngrad.training.sequence_lock import SequenceLock
from terngrad.training.step import TrainStep


@dataclasses.dataclass(frozen=True)
class Training:
    """The parts of a training that the loop and its checkpoints need.

    Attributes:
      classifier: net and loss.
      layout: layout of the gradients except in float epochs.
      runners: steps with this layout, one for each fragment in the order of their exchanges.
      float_runners: steps of float epochs; the same runners if there are none.
      step: int64 variable, steps done.
      exchanges: int64 variable, exchanges done; the same variable without local steps.
      local_steps: steps between two exchanges of a variable.
      state: all variables of a checkpoint, by name.
      exchange: connects the nodes of the run.
      kernel_choice: kernels that write and read codes.
      memory: the codecs' memory of this process' nodes.
      last_batch: the batch of the last step; None if no step is repeated.
      sequence: allows copies of the state while steps wait for other processes.
    """

    classifier: Classifier
    layout: Layout
    runners: Sequence[Runner]
    float_runners: Sequence[Runner]
    step: tf.Variable
    exchanges: tf.Variable
    local_steps: int
    state: dict[str, tf.Variable]
    exchange: Exchange
    kernel_choice: Choice
    memory: Memory
    last_batch: LastBatch | None
    sequence: SequenceLock

    def next_runner(self, *, is_float: bool) -> Runner:
        """Returns the runner of the next step, of a float epoch or of another."""
        runners = self.float_runners if is_float else self.runners
        return runners[int(self.exchanges) % len(runners) if len(runners) > 1 else 0]

    @property
    def codecs(self) -> list[Codec]:
        """The codecs of all gradients except in float epochs."""
        return _all_codecs(self.runners)

    def size_of(self, runner: Runner) -> int:
        """Returns the number of parameters that a runner exchanges."""
        exchanged = (i for codec in runner.codecs for i in codec.variables)
        return sum(math.prod(self.layout.shapes[i]) for i in exchanged)

    def traffic(self, codecs: Sequence[Codec]) -> list[Payload]:
        """Returns the bytes that this process exchanges in a step on average, by variable.

        If there is only one process, they are the bytes of each of its nodes. The `codecs` are a
        runner's, and stand for those of all fragments.
        """
        count = self.local_steps
        is_float = any(codecs is runner.codecs for runner in self.float_runners)
        every = _all_codecs(self.float_runners if is_float else self.runners)
        found = payloads(every, self.exchange)
        return [Payload(each.sent / count, each.received / count) for each in found]

    @property
    def nodes(self) -> int:
        """Number of nodes in all processes."""
        return self.exchange.num_nodes


def build_training(
    config: TrainConfig,
    goal: Problem,
    steps_per_epoch: float,
    devices: Sequence[str],
    connection: Connection | None = None,
    on_batch: Callable[[], None] | None = None,
) -> Training:
    """Builds the training that `config` describes, with initial weights from its seed.

    Args:
      config: settings of this process.
      goal: what the net learns.
      steps_per_epoch: turns epochs into steps.
      devices: towers of this process.
      connection: connection to the other processes; None = this process trains alone.
      on_batch: called, from any thread, for each batch.
    """
    classifier = _make_classifier(config, goal)
    decay = config.moving_average_decay
    stride, has_rounds = config.local_steps, config.local_steps > 1
    averages = MovingAverages(classifier.variables, decay, stride) if decay else None
    step = tf.Variable(0, dtype=tf.int64, trainable=False)
    rounds = tf.Variable(0, dtype=tf.int64, trainable=False) if has_rounds else step
    choice = runtime.kernels(on_gpu=any("GPU" in device for device in devices))
    variables = classifier.variables
    exchange = make_exchange(connection, config.nodes, choice.kernels, rounds)
    nodes, first = exchange.local_nodes, exchange.first_node
    schedule = learning_rate(config, steps_per_epoch)
    layout = _make_layout(config, classifier, _policy(config, classifier.names))
    codecs = _codecs_by_fragment(config, classifier, layout.policy, choice)
    towers = spread(devices, nodes)
    memories = [Memory(each, first, nodes, towers, sum_codecs(each, exchange)) for each in codecs]
    memory = Memory((), first, nodes)
    for each in memories:
        memory.add(each.variables)
    memory.follow_owners(exchange)
    optimizers = _make_optimizers(config, variables, choice.kernels, towers)
    keep_inner_state(memory, optimizers.inner, classifier.names, first)
    save_request = tf.Variable(0.0, trainable=False) if memory.variables else None
    repeats = connection and connection.repeats_steps and not has_rounds
    last_batch = LastBatch(step) if repeats else None
    take = last_batch.take if last_batch else next
    sequence = SequenceLock()
    noted = sequence if connection else None

    def make_runner(codecs: Sequence[Codec], kept: Memory | None = None) -> Runner:
        reduction = Reduction(codecs, exchange, rounds, config.seed, devices, kept, noted)
        make = functools.partial(Runner, take=take, sequence=noted)
        if has_rounds:
            reduction.memory_decay = config.outer_feedback
            return make(
                LocalStep(
                    classifier,
                    reduction,
                    *optimizers,
                    schedule,
                    averages,
                    step,
                    local_steps=config.steps_per_exchange,
                    outer_rate=config.outer_learning_rate,
                    overlaps=config.local_overlap,
                    save_request=save_request,
                ),
                codecs,
                on_batch,
            )
        parts = (reduction, optimizers.shared, schedule, averages)
        make_step = functools.partial(TrainStep, save_request=save_request)
        excluded_runner = None
        if connection:
            idle = make_step(IdleClassifier(classifier), *parts)
            excluded_runner = make(idle, codecs, on_batch, is_observable=False)
        return make(make_step(classifier, *parts), codecs, on_batch, excluded_runner)

    runners = float_runners = [make_runner(*each) for each in zip(codecs, memories, strict=True)]
    if config.has_float_epochs:
        plain = dataclasses.replace(layout.policy, grad_bits=32, codec="", sum_codec=EXACT)
        floats = _codecs_by_fragment(config, classifier, plain, choice)
        float_runners = [make_runner(each) for each in floats]
    state = _state(classifier, optimizers.shared, averages, step)
    if has_rounds:
        state = _with_outer_state(state, rounds)
    return Training(
        classifier,
        layout,
        runners,
        float_runners,
        step,
        rounds,
        stride,
        state,
        exchange,
        choice,
        memory,
        last_batch,
        sequence,
    )


class _Optimizers(NamedTuple):
    """The optimizers of the weights.

    Attributes:
      inner: with local steps, the optimizer of each of this process' nodes; else empty.
      shared: updates the weights that all nodes share.
    """

    inner: list[InnerOptimizer]
    shared: Optimizer


def _make_optimizers(
    config: TrainConfig, variables: Sequence[tf.Variable], kernels: GradientKernels, devices
) -> _Optimizers:
    make = lambda own, kernels=None: make_optimizer(config.optimizer, own, config.momentum, kernels)
    if config.local_steps == 1:
        return _Optimizers([], make(variables, kernels))
    own = config.local_fragments > 1 or config.local_overlap
    inner = [InnerOptimizer(make, variables, each, has_own_weights=own) for each in devices]
    return _Optimizers(inner, Momentum(variables, config.outer_momentum, nesterov=True))


def _make_classifier(config: TrainConfig, goal: Problem) -> Classifier:
    own, spec = net_settings(config), catalog.get_spec(config.net)
    model = nets_factory.build_net(
        config.net,
        num_classes=goal.num_classes,
        image_size=goal.image_size,
        weight_decay=config.weight_decay,
        dropout_keep_prob=own.dropout_keep_prob,
        seed=config.seed,
    )
    scopes = config.trainable_scopes
    with naming("trainable_scopes", scopes) if scopes else contextlib.nullcontext():
        return Classifier(
            model,
            own.label_smoothing,
            [pretrained_weights.suite_scope(scope, config.net) for scope in scopes],
            spec.auxiliary_weights,
            nets_factory.variable_name,
        )


def _make_layout(
    config: TrainConfig,
    classifier: Classifier,
    policy: Policy,
    chosen: Sequence[int] | None = None,
) -> Layout:
    shapes = [v.shape for v in classifier.variables]
    return make_layout(classifier.names, shapes, policy, config.bucket_elements, chosen)


def codecs_of(
    config: TrainConfig, classifier: Classifier, policy: Policy, kernels: GradientKernels
) -> list[Codec]:
    """Returns the codecs of a net's gradients under a policy."""
    return make_codecs(_make_layout(config, classifier, policy), kernels)


def _codecs_by_fragment(
    config: TrainConfig, classifier: Classifier, policy: Policy, choice: Choice
) -> list[list[Codec]]:
    """Returns the codecs of each fragment of a net's gradients."""
    sizes = [v.shape.num_elements() for v in classifier.variables]
    try:
        fragments = make_fragments(sizes, config.local_fragments)
    except ValueError as error:
        raise refuse("local_fragments", config.local_fragments, str(error)) from None
    layouts = [_make_layout(config, classifier, policy, chosen) for chosen in fragments]
    return [make_codecs(layout, choice.kernels) for layout in layouts]


def _all_codecs(runners: Sequence[Runner]) -> list[Codec]:
    return [codec for runner in runners for codec in runner.codecs]


def _policy(config: TrainConfig, names: Sequence[str]) -> Policy:
    layers = {name.rpartition("/")[0] for name in names}
    logits = [name for name in catalog.get_spec(config.net).logits_layers if name in layers]
    codec = _codec(config)
    return Policy(
        grad_bits=32 if codec else config.grad_bits,
        clip_factor=config.clip_factor,
        size_to_binarize=config.size_to_binarize,
        float_layers=() if config.quantize_logits else tuple(logits),
        codec=codec,
        draws=config.draws if config.is_coded else DRAWS[0],
        scale_by=config.scale_by if config.is_coded else Policy.scale_by,
        sum_codec=config.sum_codec if config.is_coded else EXACT,
    )


def _codec(config: TrainConfig) -> str:
    """Returns MODULE:CLASS of the codec that replaces `grad_bits`; "" = none."""
    if config.grad_bits == 1 and not config.scaler_sharing:
        return "terngrad.codecs.examples:OwnScaleTernaryCodec"
    if config.grad_bits == 1 and not config.use_encoding:
        return "terngrad.codecs.examples:UnpackedTernaryCodec"
    return config.codec


def _state(
    classifier: Classifier, optimizer: Optimizer, averages: MovingAverages | None, step: tf.Variable
) -> dict[str, tf.Variable]:
    """Returns the variables of a checkpoint, see terngrad/training/checkpoints.py."""
    groups = {"variables": dict(zip(classifier.names, classifier.variables, strict=True))}
    groups["variables"] |= classifier.frozen | classifier.state
    if averages:
        groups["averages"] = dict(zip(classifier.names, averages.shadows, strict=True))
    for slot, values in optimizer.slots.items():
        groups[f"slots/{slot}"] = dict(zip(classifier.names, values, strict=True))
    state = {f"{group}/{name}": v for group, named in groups.items() for name, v in named.items()}
    return {"step": step, **state}


def _with_outer_state(
    state: Mapping[str, tf.Variable], rounds: tf.Variable
) -> dict[str, tf.Variable]:
    """Returns the state of local steps, first the number of exchanges, to which these belong."""
    own, outer = "slots/momentum/", "slots/outer_momentum/"
    return {"rounds": rounds} | {n.replace(own, outer, 1): v for n, v in state.items()}
