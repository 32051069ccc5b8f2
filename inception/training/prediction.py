"""How fast steps will be, from the times of this process and of the network."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from inception.flags.configs import TrainConfig
from inception.training.batches import training_batches
from inception.training.build import Training, codecs_of
from inception.training.problem import Problem
from terngrad.codecs.codec import Codec
from terngrad.codecs.factory import find_codec, payloads
from terngrad.codecs.sum_codec import coded_exchanges, sum_codecs
from terngrad.exchange.connection import Connection, NetworkSpeed
from terngrad.exchange.exchange import CodedPayload, Exchange, Payload
from terngrad.exchange.local import LocalExchange
from terngrad.layout import DRAWS, EXACT, SUM_CODEC_NAMES, Policy, suited_settings
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.planes import plane_count
from terngrad.training.nodes import compute_nodes, draw_keys, spread
from terngrad.training.reduction import exchange_gradients

_SECS = 1.0  # of each measurement
_LEAST_ROUNDS = 3
_OVERLAP = 0.25  # share of computing that hides the network; an assumption
_PACKED_MEANS = 0.75  # of the planes of coded means: 1.5 bits, as the memory makes codes dense
_SAMPLED_ROWS = 1024  # groups of 32 values of a bucket whose sum is packed, or up to twice as many
_FLOAT, _TERNARY, _FEEDBACK = "float32", "ternary", "ternary-feedback"
_FLAGS = {_FLOAT: "float", "float16": "half"}  # names of codecs, for flags
_LOCAL_STEPS = (4, 16, 64)  # that may be recommended; the smallest sufficient number is
_MAX_SHARE_OF_STEP = 0.1  # share of a step that an exchange may take


class _Gradients(NamedTuple):
    """How gradients and their means travel, by the names of a codec and of a sum codec."""

    codec: str
    sum_codec: str = EXACT

    @property
    def flags(self) -> str:
        """The flags that choose this; float gradients have no sum codec."""
        flags = f"--codec={_FLAGS.get(self.codec, self.codec)}"
        return flags if self.codec in _FLAGS else f"{flags} --sum_codec={self.sum_codec}"

    def named(self, local_steps: int, *, overlaps: bool = False) -> str:
        """Returns the codec's name with the flags that differ from their defaults."""
        flags = [f"--sum_codec={self.sum_codec}"] if self.sum_codec != EXACT else []
        flags += [f"--local_steps={local_steps}"] if local_steps > 1 else []
        flags += ["--local_overlap"] if local_steps > 1 and overlaps else []
        return f"{self.codec} with {' and '.join(flags)}" if flags else self.codec


@dataclasses.dataclass(frozen=True)
class _StepTime:
    """Seconds of a step with some codecs, on average of `local_steps` and one exchange of all.

    The exchange of local steps waits for the last of them, unless it `overlaps` with the next.
    """

    computing: float
    codec: float
    network: float
    local_steps: int = 1
    overlaps: bool = False

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
        if self.local_steps > 1:
            return min(self.network, self.computing) if self.overlaps else 0.0
        return min(self.network, _OVERLAP * self.computing)


def predict(
    config: TrainConfig,
    problem: Problem,
    training: Training,
    devices: Sequence[str],
    connection: Connection,
    network: NetworkSpeed,
    *,
    may_code_sums: bool,
) -> str:
    """Returns how much faster the training is than with float32 gradients, and a recommendation.

    A training with float32 gradients is compared with ternary ones. The second line recommends a
    codec, a sum codec and a number of local steps. Takes some seconds, and does not change the
    training's state.
    """
    policy, kernels = training.layout.policy, training.kernel_choice.kernels
    own = policy.codec_name if policy.is_coded else f"float{policy.grad_bits}"
    each_step = _TERNARY if own == _FLOAT else own
    local = own if policy.is_coded else _FEEDBACK
    sums = SUM_CODEC_NAMES if may_code_sums else (EXACT,)
    gradients, computing = _computing(config, problem, training, devices)
    times: dict[_Gradients, _StepTime] = {}
    names = dict.fromkeys((_FLOAT, own, each_step, local))
    for way, each in _policies(names, own, policy, sums).items():
        codecs = codecs_of(config, training.classifier, each, kernels)
        codec = _coding(codecs, _Owner(training.exchange, kernels), gradients, devices)
        packing = _Packing(training.exchange, kernels)
        if training.exchange.packs_codes:
            _exchange(codecs, packing, gradients, devices)
        sending = _sending(codecs, training, connection, network, packing)
        times[way] = _StepTime(computing, codec, sending)
    count, fragments = config.local_steps, config.local_fragments
    shown = _Gradients(each_step if count == 1 else own, policy.sum_codec)
    coded = times[shown] if count == 1 else times[shown].with_local_steps(count)
    messages = _messages(training.codecs, training.exchange)
    later = (fragments - 1) * messages * network.latency_secs / count
    overlaps = config.local_overlap
    coded = dataclasses.replace(coded, network=coded.network + later, overlaps=overlaps)
    comparison = _comparison(
        shown.named(count, overlaps=overlaps), coded, times[_Gradients(_FLOAT)], network
    )
    return f"{comparison}\n{_recommended(times, each_step, local)}"


def _policies(
    names: Iterable[str], own: str, policy: Policy, sums: Sequence[str]
) -> dict[_Gradients, Policy]:
    """Returns the policies of these codecs, with each sum codec that is allowed with them."""
    replace = functools.partial(dataclasses.replace, policy, sum_codec=EXACT)
    # What --codec=ternary takes, where a training with float gradients sets none.
    clip_factor = policy.clip_factor or suited_settings(_TERNARY).clip_factor
    known = {
        _FLOAT: replace(grad_bits=32, codec=""),
        _TERNARY: replace(grad_bits=1, codec="", clip_factor=clip_factor),
        _FEEDBACK: replace(grad_bits=32, codec=_FEEDBACK, clip_factor=0.0, draws=DRAWS[0]),
        own: replace(),
    }
    return {
        _Gradients(name, each): dataclasses.replace(known[name], sum_codec=each)
        for name in names
        for each in sums
        if each == EXACT or _goes_with(known[name], each)
    }


def _goes_with(policy: Policy, sum_codec: str) -> bool:
    """Returns whether means of a policy can be coded again."""
    try:
        find_codec(policy.codec_name, policy.scale_by, sum_codec)
    except ValueError:
        return False
    return policy.is_coded


def _computing(
    config: TrainConfig, problem: Problem, training: Training, devices: Sequence[str]
) -> tuple[list[list[tf.Tensor]], float]:
    """Returns the gradients of each local node for a synthetic batch, and the seconds they take."""
    images, labels = next(iter(training_batches(config, problem, None, 0)))
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
    sums = sum_codecs(codecs, exchange)
    coded_sums = coded_exchanges(sums, [each.init() if each else [] for each in sums])
    where = spread(devices, nodes)
    return exchange_gradients(gradients, codecs, exchange, keys, where, coded_sums=coded_sums).means


class _Owner(LocalExchange):
    """Sends nothing, but owns the same share of each bucket as this process does in training."""

    def __init__(self, exchange: Exchange, kernels: GradientKernels) -> None:
        super().__init__(exchange.local_nodes, kernels)
        self.share = exchange.share

    def _scatter_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        del name, max_code
        first, end = self.share(local.shape[0])
        return local[first:end]

    def _gather_codes(self, share: tf.Tensor, rows: int, name: str, max_code: int) -> tf.Tensor:
        del name, max_code
        first, end = self.share(rows)
        return tf.pad(share, [[first, rows - end], [0, 0]])


class _Packing(LocalExchange):
    """Packs codes and their sums, outside graphs, to measure their bytes.

    In the place of other processes' codes, sums are made of shifted copies of this process' codes.
    """

    def __init__(self, exchange: Exchange, kernels: GradientKernels) -> None:
        super().__init__(exchange.local_nodes, kernels)
        self._copies = exchange.nodes_in_result // exchange.local_nodes
        self._sent, self._received = (_Packed(kernels) for _ in range(2))

    def _join_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        del name
        rows, largest = local.shape[0], self.local_nodes * max_code
        self._sent.add(local, largest, rows)
        sample, largest = local[:: max(1, rows // _SAMPLED_ROWS)], largest * self._copies
        copies = [tf.roll(sample, shift, 0) for shift in range(self._copies)]
        self._received.add(self._kernels.sum(copies, plane_count(largest)), largest, rows)
        return local

    def _scatter_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        return self._join_codes(local, name, max_code)

    def packed(self, payload: Payload) -> Payload:
        """Returns the bytes of codes, and of their sums, that are given in planes."""
        sent, received = payload.sent * self._sent.share, payload.received * self._received.share
        return Payload(sent, received)


class _Packed:
    """Counts the bytes of codes before and after they are packed."""

    def __init__(self, kernels: GradientKernels) -> None:
        self._kernels = kernels
        self._planes = self._packed = 0.0

    def add(self, codes: tf.Tensor, largest: int, rows: int) -> None:
        """Packs codes up to `largest`, which stand for so many rows."""
        planes = codes.numpy().reshape(-1).view(np.uint8).data
        whole = rows / max(codes.shape[0], 1)
        self._planes += whole * planes.nbytes
        self._packed += whole * self._kernels.packing.pack(planes, largest).nbytes

    @property
    def share(self) -> float:
        """Bytes of packed codes over those of their planes."""
        return self._packed / self._planes if self._planes else 1.0


class _PackedTraffic:
    """Stands for an exchange where bytes are counted, with packed codes in the place of planes."""

    def __init__(self, exchange: Exchange, packing: _Packing) -> None:
        self._exchange, self._packing = exchange, packing

    def __getattr__(self, name: str) -> object:
        return getattr(self._exchange, name)

    def traffic(self, payload: Payload) -> Payload:
        """See `Exchange`."""
        return self._exchange.traffic(self._packing.packed(payload))

    def traffic_of_coded_sums(self, payload: Payload, coded: CodedPayload) -> Payload:
        """See `Exchange`."""
        if self._exchange.packs_codes:
            coded = coded._replace(codes=_PACKED_MEANS * coded.codes)
        return self._exchange.traffic_of_coded_sums(self._packing.packed(payload), coded)


def _sending(
    codecs: Sequence[Codec],
    training: Training,
    connection: Connection,
    network: NetworkSpeed,
    packing: _Packing,
) -> float:
    """Returns the seconds that packed gradients take on the network."""
    exchange = training.exchange
    traffic = payloads([each for each in codecs if not each.max_code], exchange)
    coded = [each for each in codecs if each.max_code]
    traffic += payloads(coded, _PackedTraffic(exchange, packing))
    octets = max(sum(each.sent for each in traffic), sum(each.received for each in traffic))
    carried = 8 * octets * connection.exchange_copies
    return carried / network.bits_per_sec + _messages(codecs, exchange) * network.latency_secs


def _messages(codecs: Sequence[Codec], exchange: Exchange) -> int:
    """Returns how many messages follow one another: scales, codes, sums or codes of means."""
    scales = any(codec.scale_count for codec in codecs)
    is_coded_again = any(codec.sum_codec for codec in codecs)
    return exchange.hops * scales + 2 * (exchange.hops if is_coded_again else 1)


def _seconds(function: Callable[[], object]) -> float:
    """Returns the median seconds of a call, after one that does not count."""
    tf.nest.map_structure(lambda tensor: tensor.numpy(), function())
    measured: list[float] = []
    while len(measured) < _LEAST_ROUNDS or sum(measured) < _SECS:
        start = time.perf_counter()
        tf.nest.map_structure(lambda tensor: tensor.numpy(), function())
        measured.append(time.perf_counter() - start)
    return statistics.median(measured)


def _comparison(name: str, coded: _StepTime, plain: _StepTime, network: NetworkSpeed) -> str:
    ratio = plain.seconds / coded.seconds
    change = f"{ratio:.1f} x faster" if ratio >= 1 else f"{1 / ratio:.1f} x slower"
    return (
        f"Prediction: {name} {change} than {_FLOAT} on this network "
        f"({network.bits_per_sec / 1e6:,.0f} Mbit/s, {1e3 * network.latency_secs:.2f} ms a "
        f"message): {1e3 * coded.seconds:.0f} ms a step instead of {1e3 * plain.seconds:.0f}; "
        f"computing takes {1e3 * coded.computing:.0f}, the codec {1e3 * coded.codec:.0f}, "
        f"the network {1e3 * coded.network:.0f} instead of {1e3 * plain.network:.0f}."
    )


def _recommended(times: Mapping[_Gradients, _StepTime], each_step: str, local: str) -> str:
    """Returns the setting that changes the training least, of those that the network allows.

    Args:
      times: of a step, by how gradients travel.
      each_step: codec to replace float32 gradients in each step.
      local: codec with local steps.
    """
    ways = lambda codec: [way for way in times if way.codec == codec]
    found = [(way, times[way]) for codec in (_FLOAT, each_step) for way in ways(codec)]
    found += [
        (way, times[way].with_local_steps(count)) for count in _LOCAL_STEPS for way in ways(local)
    ]
    within = [each for each in found if each[1].exchange_share <= _MAX_SHARE_OF_STEP]
    way, best = within[0] if within else min(found, key=lambda each: each[1].seconds)
    share = f"{100 * best.exchange_share:.0f} % of it"
    has_coded_sums = any(way.sum_codec != EXACT for way in times)
    sums = ", exact sums before coded ones," if has_coded_sums else ""
    why = (
        f"the first of {_FLOAT}, {each_step}, and {local} with {_listed(_LOCAL_STEPS)} local steps"
        f"{sums} whose exchange takes at most {100 * _MAX_SHARE_OF_STEP:.0f} %"
        if within
        else f"the fastest, though its exchange takes more than {100 * _MAX_SHARE_OF_STEP:.0f} %"
    )
    return (
        f"Recommended here: {way.flags} --local_steps={best.local_steps}, "
        f"{1e3 * best.seconds:.0f} ms a step, the exchange {share}: {why}."
    )


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"
