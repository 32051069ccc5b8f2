"""Clusters that the model predicts for, each described by a small file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import Any

_FOLDER = os.path.join(os.path.dirname(__file__), "clusters")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """The work of a device in a step.

    Attributes:
      batch: images of a worker in a step.
      images_per_s: images that a device computes in a second, alone; None = not known.
      speed_up: published speed-up: ternary over float32 images a second, by workers.
    """

    batch: int
    images_per_s: float | None = None
    speed_up: Mapping[int, float] = dataclasses.field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds that a step computes."""
        return self.batch / self.images_per_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModeledCluster:
    """Machines on a network, with a worker for each device.

    Attributes:
      gbit_per_s: bandwidth of a machine in each direction: 1e9 bits a second.
      latency_us: microseconds that each message costs, whatever its size.
      workers_per_machine: devices that share a machine's network link.
      local_gbyte_per_s: bandwidth from a device to its neighbours: 1e9 bytes a second.
      codec_ns: nanoseconds a value to encode, add and decode ternary codes.
      host_gbyte_per_s: bandwidth between a device and the host's memory: 1e9 bytes a second. Codes
        and their sums are copied; the model assumes that floats go from the device to the network.
      overlap: share of the computing during which gradients travel already, in [0, 1].
      nets: the work of a device, by the net's name.
    """

    gbit_per_s: float
    latency_us: float = 0.0
    workers_per_machine: int = 1
    local_gbyte_per_s: float = math.inf
    codec_ns: float = 0.0
    host_gbyte_per_s: float = math.inf
    overlap: float = 0.0
    nets: Mapping[str, Load] = dataclasses.field(default_factory=dict)


def presets() -> list[str]:
    """Names of the clusters that come with the model."""
    return sorted(name.removesuffix(".json") for name in os.listdir(_FOLDER))


def read(name: str) -> ModeledCluster:
    """Reads a cluster.

    Args:
      name: one of `presets()`, or the path of a JSON file: an object with the attributes of
        ModeledCluster; nets is an object of objects with those of Load.

    Raises:
      ValueError: says what in the file is wrong, or that there is none.
    """
    path = os.path.join(_FOLDER, f"{name}.json") if name in presets() else name
    try:
        with open(path, encoding="utf-8") as file:
            return _parse(json.load(file))
    except FileNotFoundError:
        raise ValueError(f"no such file; allowed are files and {', '.join(presets())}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None


def _parse(content: Any) -> ModeledCluster:
    fields = _checked(ModeledCluster, content, "the file")
    nets = fields.pop("nets", {})
    if not isinstance(nets, dict):
        raise ValueError("nets must be an object of objects")
    return ModeledCluster(
        nets={net: _parse_load(net, load) for net, load in nets.items()}, **fields
    )


def _parse_load(net: str, content: Any) -> Load:
    fields = _checked(Load, content, net)
    speed_up = _numbers(fields.pop("speed_up", {}), f"{net}.speed_up")
    if "batch" not in fields or not ("images_per_s" in fields or speed_up):
        raise ValueError(f"{net} needs batch, and images_per_s or speed_up")
    try:
        published = {int(workers): value for workers, value in speed_up.items()}
    except ValueError:
        raise ValueError(f"{net}.speed_up must have numbers of workers as names") from None
    if min(published, default=1) < 1 or min(published.values(), default=1) <= 0:
        raise ValueError(f"{net}.speed_up must have 1 worker or more, and speed-ups above 0")
    return Load(speed_up=published, **fields)


def _checked(kind: type, content: Any, name: str) -> dict[str, Any]:
    """Returns the fields of an object, in which all values but objects are numbers >= 0."""
    allowed = [field.name for field in dataclasses.fields(kind)]
    if not isinstance(content, dict):
        raise ValueError(f"{name} must be an object with some of {', '.join(allowed)}")
    if unknown := content.keys() - set(allowed):
        raise ValueError(f"{name} has {min(unknown)!r}; allowed are {', '.join(allowed)}")
    if kind is ModeledCluster and "gbit_per_s" not in content:
        raise ValueError("gbit_per_s is missing")
    _numbers({k: v for k, v in content.items() if k not in ("nets", "speed_up")}, name)
    rates = ("gbit_per_s", "local_gbyte_per_s", "host_gbyte_per_s")
    for field in (*rates, "workers_per_machine", "batch", "images_per_s"):
        if content.get(field, 1) <= 0:
            raise ValueError(f"{name}: {field} must be above 0")
    for field in ("workers_per_machine", "batch"):
        if not isinstance(content.get(field, 1), int):
            raise ValueError(f"{name}: {field} must be a whole number")
    if content.get("overlap", 0) > 1:
        raise ValueError(f"{name}: overlap must be in [0, 1]")
    return dict(content)


def _numbers(content: Any, name: str) -> Mapping[str, float]:
    if not isinstance(content, dict):
        raise ValueError(f"{name} must be an object of numbers")
    for field, value in content.items():
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not (good and 0 <= value < math.inf):
            raise ValueError(f"{name}: {field} is {value!r}; must be a number >= 0")
    return content
