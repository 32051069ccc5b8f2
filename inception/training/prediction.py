"""How fast steps will be, from the times of this process and of the network."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from inception.flags.configs import TrainConfig
from inception.training.batches import training_batches
from inception.training.build import Training, codecs_of
from inception.training.problem import Problem
from terngrad.codecs.codec import Codec
from terngrad.codecs.factory import payloads
from terngrad.exchange.connection import Connection, NetworkSpeed
from terngrad.exchange.local import LocalExchange
from terngrad.layout import DRAWS, Policy
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.training.nodes import compute_nodes, draw_keys, spread
from terngrad.training.reduction import exchange_gradients

_SECS = 1.0  # of each measurement
_LEAST_ROUNDS = 3
_OVERLAP = 0.25  # share of computing that hides the network; an assumption
_FLOAT, _TERNARY, _FEEDBACK = "float32", "ternary", "ternary-feedback"
_FLAGS = {_FLOAT: "float", "float16": "half"}  # names of codecs, for flags
_LOCAL_STEPS = (4, 16, 64)  # that are recommended, the least that will do
_MOST_OF_A_STEP = 0.1  # share of a step that an exchange may take


@dataclasses.dataclass(frozen=True)
class _StepTime:
    """Seconds of a step with some codecs, on average of `local_steps` and one exchange of all."""

    computing: float
    codec: float
    network: float
    local_steps: int = 1

    @property
    def seconds(self) -> float:
        return self.computing + self.codec + self.network - self._hidden

    @property
    def exchange_share(self) -> float:
        """Share of the step in which nothing is computed but codes."""
        return 1 - self.computing / self.seconds

    def with_local_steps(self, count: int) -> _StepTime:
        """Returns this with as many local steps in the place of one."""
        return _StepTime(self.computing, self.codec / count, self.network / count, count)

    @property
    def _hidden(self) -> float:
        if self.local_steps > 1:  # the exchange waits for the last of them
            return 0.0
        return min(self.network, _OVERLAP * self.computing)


def predict(
    config: TrainConfig,
    goal: Problem,
    training: Training,
    devices: Sequence[str],
    connection: Connection,
    network: NetworkSpeed,
) -> str:
    """Returns how much faster than float32 the training's gradients make it, and what would do.

    A training with float32 gradients in each step is compared with ternary ones. The second line
    recommends a codec and a number of local steps. Takes some seconds, and leaves the training's
    state as it is.
    """
    policy, kernels = training.layout.policy, training.kernel_choice.kernels
    own = policy.codec_name if policy.is_coded else f"float{policy.grad_bits}"
    gradients, computing = _computing(config, goal, training, devices)
    times: dict[str, _StepTime] = {}
    for name, each in _policies(own, policy).items():
        codecs = codecs_of(config, training.classifier, each, kernels)
        nodes = training.exchange.local_nodes
        codec = _coding(codecs, LocalExchange(nodes, kernels), gradients, devices)
        packing = _Packing(nodes, kernels)
        if training.exchange.packs_codes:
            _exchange(codecs, packing, gradients, devices)
        sending = _sending(codecs, training, connection, network, packing.share)
        times[name] = _StepTime(computing, codec, sending)
    count, fragments = config.local_steps, config.local_fragments
    shown = _TERNARY if own == _FLOAT and count == 1 else own
    coded = times[shown] if count == 1 else times[shown].with_local_steps(count)
    later = (fragments - 1) * _messages(training.codecs) * network.latency_secs / count
    coded = dataclasses.replace(coded, network=coded.network + later)
    told = _told(_named(shown, count), coded, times[_FLOAT], network)
    return f"{told}\n{_recommended(times, _TERNARY if own == _FLOAT else own, policy.is_coded)}"


def _policies(own: str, policy: Policy) -> dict[str, Policy]:
    """Returns the policies to compare, by the name of their codec."""
    replace = functools.partial(dataclasses.replace, policy)
    return {
        _FLOAT: replace(grad_bits=32, codec=""),
        _TERNARY: replace(grad_bits=1, codec=""),
        _FEEDBACK: replace(grad_bits=32, codec=_FEEDBACK, clip_factor=0.0, draws=DRAWS[0]),
        own: policy,
    }


def _computing(
    config: TrainConfig, goal: Problem, training: Training, devices: Sequence[str]
) -> tuple[list[list[tf.Tensor]], float]:
    """Returns the gradients of each local node for a synthetic batch, and the seconds they take."""
    images, labels = next(iter(training_batches(config, goal, None, 0)))
    nodes = training.exchange.local_nodes
    keys = draw_keys(config.seed, training.step.read_value(), 0, nodes)

    @tf.function(autograph=False)
    def compute() -> list[list[tf.Tensor]]:
        where = spread(devices, nodes)
        found = compute_nodes(training.classifier, images, labels, keys, where)
        return [node.gradients for node in found]

    return compute(), _seconds(compute)


def _coding(
    codecs: Sequence[Codec],
    exchange: LocalExchange,
    gradients: Sequence[Sequence[tf.Tensor]],
    devices: Sequence[str],
) -> float:
    """Returns the seconds in which a process encodes, adds and decodes, without a network."""
    take = lambda: _exchange(codecs, exchange, gradients, devices)
    return _seconds(tf.function(take, autograph=False))


def _exchange(
    codecs: Sequence[Codec],
    exchange: LocalExchange,
    gradients: Sequence[Sequence[tf.Tensor]],
    devices: Sequence[str],
) -> list[tf.Tensor]:
    nodes = exchange.local_nodes
    keys = draw_keys(0, tf.constant(0, tf.int64), 0, nodes)
    return exchange_gradients(gradients, codecs, exchange, keys, spread(devices, nodes)).means


class _Packing(LocalExchange):
    """Packs the sums of codes, outside graphs, to learn in how many bytes codes travel."""

    def __init__(self, local_nodes: int, kernels: GradientKernels) -> None:
        super().__init__(local_nodes, kernels)
        self._planes = self._packed = 0

    def _join_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        del name
        largest, planes = self.largest_sum(max_code), local.numpy().reshape(-1).view(np.uint8).data
        packed = self._kernels.packing.pack(planes, largest)
        self._planes += planes.nbytes
        self._packed += packed.nbytes
        return local

    @property
    def share(self) -> float:
        """Bytes of packed sums over those of their planes."""
        return self._packed / self._planes if self._planes else 1.0


def _sending(
    codecs: Sequence[Codec],
    training: Training,
    connection: Connection,
    network: NetworkSpeed,
    share: float,
) -> float:
    """Returns the seconds that gradients travel, codes in a share of their planes' bytes."""
    coded = {i for codec in codecs if codec.max_code for i in codec.variables}
    shares = [share if i in coded else 1.0 for i in range(len(training.layout.names))]
    traffic = list(zip(payloads(codecs, training.exchange), shares, strict=True))
    octets = max(sum(p.sent * s for p, s in traffic), sum(p.received * s for p, s in traffic))
    carried = 8 * octets * connection.exchange_copies
    return carried / network.bits_per_sec + _messages(codecs) * network.latency_secs


def _messages(codecs: Sequence[Codec]) -> int:
    """Returns how many messages follow one another: scales, codes, sums."""
    return 2 + any(codec.scale_count for codec in codecs)


def _seconds(function: Callable[[], object]) -> float:
    """Returns the median seconds of a call, after one that does not count."""
    tf.nest.map_structure(lambda tensor: tensor.numpy(), function())
    measured: list[float] = []
    while len(measured) < _LEAST_ROUNDS or sum(measured) < _SECS:
        start = time.perf_counter()
        tf.nest.map_structure(lambda tensor: tensor.numpy(), function())
        measured.append(time.perf_counter() - start)
    return statistics.median(measured)


def _told(name: str, coded: _StepTime, plain: _StepTime, network: NetworkSpeed) -> str:
    ratio = plain.seconds / coded.seconds
    change = f"{ratio:.1f} x faster" if ratio >= 1 else f"{1 / ratio:.1f} x slower"
    return (
        f"Prediction: {name} {change} than {_FLOAT} on this network "
        f"({network.bits_per_sec / 1e6:,.0f} Mbit/s, {1e3 * network.latency_secs:.2f} ms a "
        f"message): {1e3 * coded.seconds:.0f} ms a step instead of {1e3 * plain.seconds:.0f}; "
        f"computing takes {1e3 * coded.computing:.0f}, the codec {1e3 * coded.codec:.0f}, "
        f"the network {1e3 * coded.network:.0f} instead of {1e3 * plain.network:.0f}."
    )


def _named(codec: str, local_steps: int) -> str:
    return f"{codec} with --local_steps={local_steps}" if local_steps > 1 else codec


def _recommended(times: Mapping[str, _StepTime], coded: str, is_chosen: bool) -> str:
    """Returns the setting that changes the training least, of those that the network allows.

    Args:
      times: of a step of each codec.
      coded: codec that would take the place of float32 gradients in each step.
      is_chosen: whether it is the user's, so that local steps use it too.
    """
    local = coded if is_chosen else _FEEDBACK
    found = [(_FLOAT, times[_FLOAT]), (coded, times[coded])]
    found += [(local, times[local].with_local_steps(count)) for count in _LOCAL_STEPS]
    within = [each for each in found if each[1].exchange_share <= _MOST_OF_A_STEP]
    name, best = within[0] if within else min(found, key=lambda each: each[1].seconds)
    share = f"{100 * best.exchange_share:.0f} % of it"
    why = (
        f"the first of {_FLOAT}, {coded}, and {local} with {_listed(_LOCAL_STEPS)} local steps "
        f"whose exchange takes at most {100 * _MOST_OF_A_STEP:.0f} %"
        if within
        else f"the fastest, though its exchange takes more than {100 * _MOST_OF_A_STEP:.0f} %"
    )
    flags = f"--codec={_FLAGS.get(name, name)} --local_steps={best.local_steps}"
    return (
        f"Recommended here: {flags}, {1e3 * best.seconds:.0f} ms a step, the exchange "
        f"{share}: {why}."
    )


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"
