"""The time of a step: computing, codec and network."""

from __future__ import annotations

import dataclasses
import math

from benchmarks.performance.cluster import Load, ModeledCluster
from benchmarks.performance.traffic import (
    BOTH_WAYS,
    FLOAT_BITS,
    CodeBits,
    exchange_bits,
    mean_bits,
    packed_bits,
    server_bits,
)
from terngrad.exchange.two_shot import is_one_shot
from terngrad.layout import EXACT
from terngrad.planes import plane_count

EXCHANGES = ("float32", "float16", "ternary")
TOPOLOGIES = ("two_shot", "ring", "one_shot", "parameter_server", "paper")


@dataclasses.dataclass(frozen=True)
class Route:
    """How gradients travel between the workers.

    Attributes:
      topology: "two_shot": every worker adds a share of the values and sends the sum to all, or
        sends its codes to all where that is fewer bytes: the suite's all-reduce. "ring": the same
        bytes for floats, in many more messages; sums of codes need more bits than codes, so ternary
        gradients take two shots. "one_shot": every worker sends its codes to all.
        "parameter_server": see `servers`. "paper": every value crosses a machine's link once, a
        ternary one in two bits, which reproduces TernGrad's own model.
      servers: number of parameter servers, each on a machine of its own.
      packs_codes: whether all-reduce sends codes and sums in a prefix code between machines, as
        sockets do, else as bit planes; parameter servers always do.
      sum_codec: "exact", or "ternary": the means of ternary gradients are coded again on their way
        back by the owners of shares, by "two_shot", "ring" and "parameter_server".
    """

    topology: str = "two_shot"
    servers: int = 1
    packs_codes: bool = True
    sum_codec: str = EXACT

    def codes_sums(self, exchange: str) -> bool:
        """Returns whether means travel back as codes."""
        return exchange not in FLOAT_BITS and self.sum_codec != EXACT


def step_seconds(
    values: int, load: Load, cluster: ModeledCluster, workers: int, exchange: str, route: Route
) -> float:
    """Returns the seconds of a step in which each worker computes a batch.

    Args:
      values: gradient values that the workers exchange.
      load: the work of a device.
      cluster: the machines.
      workers: number of workers; they fill one machine after the other.
      exchange: one of EXCHANGES.
      route: how gradients travel.
    """
    if workers == 1:
        return load.seconds
    codec = _codec_seconds(values, cluster, workers, route) if exchange == "ternary" else 0.0
    network = exchange_seconds(values, cluster, workers, exchange, route)
    hidden = min(network, cluster.overlap * load.seconds)
    return load.seconds + codec + (network - hidden)


def _codec_seconds(values: int, cluster: ModeledCluster, workers: int, route: Route) -> float:
    """Returns the seconds that ternary codes take on a device, without the network."""
    bits, coded = sum(exchange_bits("ternary", 1, workers)), 1.0
    if route.codes_sums("ternary"):  # of its share, a device decodes the sums and codes the means
        share = 1 / workers
        bits, coded = 2 * plane_count(1) + share * bits, 1 + share
    copied = bits / 8 / (cluster.host_gbyte_per_s * 1e9)
    return values * (coded * cluster.codec_ns * 1e-9 + copied)


def exchange_seconds(
    values: int, cluster: ModeledCluster, workers: int, exchange: str, route: Route
) -> float:
    """Returns the seconds to send gradients and their sums, first inside the machines."""
    machines = -(-workers // cluster.workers_per_machine)
    inside = min(workers, cluster.workers_per_machine)
    local = Route("paper" if route.topology == "paper" else "two_shot")
    bytes_inside, _ = busiest_link(values, inside, 1, inside, exchange, local)
    code_bits = packed_bits if route.packs_codes else plane_count
    sent, messages = busiest_link(values, machines, inside, workers, exchange, route, code_bits)
    return (
        bytes_inside / (cluster.local_gbyte_per_s * 1e9)
        + sent * 8 / (cluster.gbit_per_s * 1e9)
        + messages * cluster.latency_us * 1e-6
    )


def busiest_link(
    values: int,
    places: int,
    nodes: int,
    workers: int,
    exchange: str,
    route: Route,
    code_bits: CodeBits = plane_count,
) -> tuple[float, int]:
    """Returns the bytes on the busiest link in its busier direction, and messages in a row.

    Args:
      values: gradient values.
      places: senders, each with a link of its own.
      nodes: nodes whose codes a place adds before it sends them.
      workers: nodes in the sum.
      exchange: one of EXCHANGES, or RING or BOTH_WAYS of traffic.py.
      route: how gradients travel.
      code_bits: bits of a value in a sum of codes.
    """
    if route.topology == "parameter_server":
        bits, messages = max(server_bits(exchange, -(-workers // nodes), nodes)), 2
        if route.codes_sums(exchange):  # each place owns a share
            up, down = exchange_bits(exchange, nodes, workers, packed_bits)
            bits, messages = max(up + mean_bits() / places, down / places + mean_bits()), 4
        return values * bits / 8 * max(1.0, places / route.servers), messages
    if places == 1:
        return 0.0, 0
    is_coded_again = route.codes_sums(exchange)
    kind = BOTH_WAYS if is_coded_again else exchange
    codes, sums = exchange_bits(kind, nodes, workers, code_bits)
    share, is_float = (places - 1) / places, exchange in FLOAT_BITS
    if route.topology == "paper":
        return values * (codes if is_float else 2) / 8 * share, 1
    may_be_short = route.topology == "two_shot" and not is_coded_again
    if (may_be_short and is_one_shot(codes, sums, places)) or route.topology == "one_shot":
        return values * codes / 8 * (places - 1), 1
    messages = 2 * (places - 1) if is_float and route.topology == "ring" else 2
    return values * (codes + sums) / 8 * share, messages


def speed_up(values: int, load: Load, cluster: ModeledCluster, workers: int, route: Route) -> float:
    """Returns the time of a step with float32 gradients over that with ternary ones."""
    times = (
        step_seconds(values, load, cluster, workers, exchange, route)
        for exchange in ("float32", "ternary")
    )
    return next(times) / next(times)


def with_compute(values: int, load: Load, cluster: ModeledCluster) -> Load:
    """Returns a load whose computing, where unknown, makes the paper's model give its speed-up.

    Raises:
      ValueError: no computing gives the published speed-up of the most workers.
    """
    if load.images_per_s is not None:
        return load
    workers, published = max(load.speed_up.items())
    known = lambda log: dataclasses.replace(load, images_per_s=math.exp(log))
    ratio = lambda log: speed_up(values, known(log), cluster, workers, Route("paper"))
    low, high = 0.0, math.log(1e9)  # the faster a device computes, the more compression helps
    if not ratio(low) < published < ratio(high):
        raise ValueError(f"no speed of computing gives {published} x with {workers} workers")
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(middle) < published else (low, middle)
    return known(low)
