"""From a config to the parts of a training: net, codecs, exchange, optimizer, compiled steps."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from inception.flags.configs import TrainConfig
from inception.flags.table import naming, refuse
from inception.training.batches import LastBatch
from inception.training.learning_rate import learning_rate
from inception.training.problem import Problem, net_settings
from inception.training.runner_factory import RunnerFactory, make_optimizers
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
from terngrad.training.classifier import Classifier
from terngrad.training.local_step import keep_inner_state, make_fragments
from terngrad.training.memory import Memory
from terngrad.training.nodes import spread
from terngrad.training.optimizers import Optimizer
from terngrad.training.reduction import make_exchange
from terngrad.training.runner import Runner
from terngrad.training.runtime import Choice
from terngrad.training.sequence_lock import SequenceLock


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
      memories: the same by fragment.
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
    memories: Sequence[Memory]
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
    problem: Problem,
    steps_per_epoch: float,
    devices: Sequence[str],
    connection: Connection | None = None,
    on_batch: Callable[[], None] | None = None,
) -> Training:
    """Builds the training that `config` describes, with initial weights from its seed.

    Args:
      config: settings of this process.
      problem: what the net learns.
      steps_per_epoch: turns epochs into steps.
      devices: towers of this process.
      connection: connection to the other processes; None = this process trains alone.
      on_batch: called, from any thread, for each batch.
    """
    classifier = _make_classifier(config, problem)
    variables, decay = classifier.variables, config.moving_average_decay
    averages = MovingAverages(variables, decay, config.local_steps) if decay else None
    has_rounds = config.local_steps > 1
    step = _counter()
    rounds = _counter() if has_rounds else step
    choice = runtime.kernels(on_gpu=any("GPU" in device for device in devices))
    exchange = make_exchange(connection, config.nodes, choice.kernels, rounds)
    layout = _make_layout(config, classifier, _policy(config, classifier.names))
    codecs = _codecs_by_fragment(config, classifier, layout.policy, choice)
    towers = spread(devices, exchange.local_nodes)
    memories, memory = _make_memories(codecs, exchange, towers)
    optimizers = make_optimizers(config, variables, choice.kernels, towers)
    keep_inner_state(memory, optimizers.inner, classifier.names, exchange.first_node)
    repeats = connection and connection.repeats_steps and not has_rounds
    # The same on all processes, though with coded sums some may have no memory: they own no share.
    saves_together = bool(memory.variables) or config.codes_sums
    factory = RunnerFactory(
        config=config,
        classifier=classifier,
        exchange=exchange,
        optimizers=optimizers,
        schedule=learning_rate(config, steps_per_epoch),
        averages=averages,
        step=step,
        rounds=rounds,
        devices=devices,
        save_request=tf.Variable(0.0, trainable=False) if saves_together else None,
        last_batch=LastBatch(step) if repeats else None,
        sequence=SequenceLock(),
        on_batch=on_batch,
        is_connected=connection is not None,
    )
    runners = [factory.make(*each) for each in zip(codecs, memories, strict=True)]
    float_runners = runners
    if config.has_float_epochs:
        plain = dataclasses.replace(layout.policy, grad_bits=32, codec="", sum_codec=EXACT)
        floats = _codecs_by_fragment(config, classifier, plain, choice)
        float_runners = [factory.make(each) for each in floats]
    state = _state(classifier, optimizers.shared, averages, step)
    return Training(
        classifier=classifier,
        layout=layout,
        runners=runners,
        float_runners=float_runners,
        step=step,
        exchanges=rounds,
        local_steps=config.local_steps,
        state=_with_outer_state(state, rounds) if has_rounds else state,
        exchange=exchange,
        kernel_choice=choice,
        memory=memory,
        memories=memories,
        last_batch=factory.last_batch,
        sequence=factory.sequence,
    )


def _counter() -> tf.Variable:
    return tf.Variable(0, dtype=tf.int64, trainable=False)


def _make_memories(
    codecs: Sequence[Sequence[Codec]], exchange: Exchange, towers: Sequence[str]
) -> tuple[list[Memory], Memory]:
    """Returns the codecs' memory by fragment, and all of it as one."""
    first = exchange.first_node
    sums = [sum_codecs(each, exchange) for each in codecs]
    by_fragment = [
        Memory(each, first, exchange.local_nodes, towers, coded)
        for each, coded in zip(codecs, sums, strict=True)
    ]
    memory = Memory((), first, exchange.local_nodes)
    for each in by_fragment:
        memory.add(each.variables)
    memory.follow_owners(exchange, [*itertools.chain(*sums)])
    return by_fragment, memory


def _make_classifier(config: TrainConfig, problem: Problem) -> Classifier:
    own, spec = net_settings(config), catalog.get_spec(config.net)
    model = nets_factory.build_net(
        config.net,
        num_classes=problem.num_classes,
        image_size=problem.image_size,
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
