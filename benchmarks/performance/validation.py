"""Compares predicted with measured times of exchanges between hosts."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.performance.cluster import ModeledCluster
from benchmarks.performance.step_time import Route, exchange_seconds
from benchmarks.performance.traffic import RING

# What token buckets of a nominal rate let through, in Gbit/s.
_RATES = {"1gbit": 0.955, "100mbit": 0.096}
_FITTED = ("lenet_slim", "1gbit")  # the cells to which the share of visible work is fitted


class Cell(NamedTuple):
    """A measured exchange between hosts.

    Attributes:
      name: net, hosts, rate, engine and kind of exchange.
      fitted: whether the share of visible work is taken from it.
      work_ms: milliseconds of the same exchange where the network is no limit.
      wire_ms: milliseconds that the model gives the network.
      measured_ms: median of the measured milliseconds.
    """

    name: str
    fitted: bool
    work_ms: float
    wire_ms: float
    measured_ms: float

    def predicted_ms(self, share: float) -> float:
        """Milliseconds of the model if this share of the work is not hidden by the network."""
        return share * self.work_ms + self.wire_ms

    def error(self, share: float) -> float:
        """Relative error of the prediction; above 0 where it is too long."""
        return self.predicted_ms(share) / self.measured_ms - 1


def read_cells(paths: Iterable[str]) -> list[Cell]:
    """Returns the cells of files that exchange_benchmark wrote, where there is an unshaped one.

    Raises:
      ValueError: names a file that does not hold such figures.
    """
    cells = []
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                found = [cell for cell in json.load(file)["cells"] if cell.get("ms")]
            work = {_key(cell): _ms(cell) for cell in found if cell["rate"] == "unshaped"}
            cells += [_cell(x, work[_key(x)]) for x in found if _key(x) in work and _shaped(x)]
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{path}: holds no figures of benchmarks.exchange_benchmark") from None
    if not any(cell.fitted for cell in cells) or all(cell.fitted for cell in cells):
        raise ValueError("needs shaped and unshaped cells of lenet_slim at 1gbit and of others")
    return cells


def visible_share(cells: Sequence[Cell]) -> float:
    """Returns the share of the work that the network does not hide, from the fitted cells."""
    fitted = [cell for cell in cells if cell.fitted]
    shares = [percent / 100 for percent in range(101)]
    return min(shares, key=lambda share: statistics.mean(abs(c.error(share)) for c in fitted))


def _key(cell: dict) -> tuple:
    return tuple(cell.get(k) for k in ("gradients", "hosts", "engine", "servers", "exchange"))


def _shaped(cell: dict) -> bool:
    return cell["rate"] in _RATES


def _ms(cell: dict) -> float:
    return statistics.median(cell["ms"])


def _cell(cell: dict, work_ms: float) -> Cell:
    """Returns a cell with the model's time on the network; messages are part of the work.

    The bytes are those that the engine sent when it was measured, where the file has them.
    """
    servers = cell.get("servers") or 0
    if octets := cell.get("formula_busiest_bytes"):
        wire = octets * 8 / (_RATES[cell["rate"]] * 1e9)
    else:
        # In files without these bytes, all-reduce sent bit planes instead of the prefix code.
        route = Route("parameter_server", servers) if servers else Route(packs_codes=False)
        exchange = "float32" if cell["exchange"] == RING else cell["exchange"]
        cluster = ModeledCluster(gbit_per_s=_RATES[cell["rate"]])
        wire = exchange_seconds(cell["values"], cluster, cell["hosts"], exchange, route)
    engine = f"{servers} ps" if servers else cell["engine"]
    name = f"{cell['gradients']}, {cell['hosts']} hosts, {cell['rate']}, {engine}"
    fitted = (cell["gradients"], cell["rate"]) == _FITTED
    return Cell(f"{name}, {cell['exchange']}", fitted, work_ms, wire * 1e3, _ms(cell))
