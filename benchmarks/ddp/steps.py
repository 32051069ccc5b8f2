"""One host of benchmarks/step_benchmark.py: steps of a net with PyTorch's DDP over Gloo.

Runs in a separate environment, which has torch and numpy only. The nets have the layers of those in
slim/nets.
"""

import argparse
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

_START_POWER_SGD = 2  # steps of plain all-reduce that its error feedback needs
_WARM_UP = 5  # steps: PyTorch rebuilds its buckets, PowerSGD starts
_VGG_16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # filters and convolutions of a group
_RESNET_50 = ((64, 3, 2), (128, 4, 2), (256, 6, 2), (512, 3, 1))  # filters, units, last stride


class _Net(NamedTuple):
    build: Callable[[], nn.Module]
    image: tuple[int, int, int]
    classes: int


def main() -> None:
    """Measures all kinds of exchange, one after another in each round."""
    arguments = _parse()
    connect(arguments)
    torch.manual_seed(1)
    variants = {
        f"DDP {kind}": _variant(arguments, *KINDS[kind]) for kind in arguments.kinds.split(",")
    }
    for variant in variants.values():
        variant(_WARM_UP)
    figures = ("ms", "interface_bytes", "cpu_ms")
    cells = {name: {"variant": name, **{figure: [] for figure in figures}} for name in variants}
    for name in list(variants) * arguments.rounds:
        dist.barrier()
        before = counters(arguments.interface)
        variants[name](arguments.steps)
        wall = time.perf_counter() - before[0]
        dist.barrier()
        after = counters(arguments.interface)
        _, sent, cpu = (now - then for now, then in zip(after, before, strict=True))
        for figure, value in zip(figures, (1000 * wall, sent, 1000 * cpu), strict=True):
            cells[name][figure].append(value / arguments.steps)
    path = Path(arguments.output_dir, f"{arguments.task_id}.json")
    path.write_text(json.dumps(list(cells.values())))
    dist.destroy_process_group()


def connect(arguments: argparse.Namespace) -> None:
    """Connects to the other hosts by Gloo, and computes with one thread."""
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": arguments.interface, "USE_LIBUV": "0"}
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{arguments.master}",
        rank=arguments.task_id,
        world_size=arguments.hosts,
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("master", "interface", "output_dir", "net", "kinds", "optimizer"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("hosts", "task_id", "batch_size", "steps", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def _variant(
    arguments: argparse.Namespace,
    hook: Callable[[DistributedDataParallel], None],
    bucket_cap_mb: int | None,
) -> Callable[[int], None]:
    net = _NETS[arguments.net]
    # No buffers: broadcasts of the moving averages would only add to what DDP sends.
    ddp = DistributedDataParallel(net.build(), bucket_cap_mb=bucket_cap_mb, broadcast_buffers=False)
    hook(ddp)
    # PyTorch's fused updates take one pass over memory.
    if arguments.optimizer == "adam":
        optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3, fused=True)
    else:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = torch.randn(arguments.batch_size, *net.image)
    labels = torch.randint(0, net.classes, (arguments.batch_size,))
    entropy = nn.CrossEntropyLoss()

    def run(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            entropy(ddp(images), labels).backward()
            optimizer.step()

    return run


def _use_power_sgd(ddp: DistributedDataParallel, rank: int) -> None:
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=rank, start_powerSGD_iter=_START_POWER_SGD
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


# By the names of benchmarks/recipes.py: the hook, and the size of buckets.
KINDS = {
    "float32": (lambda ddp: None, None),
    "float16": (lambda ddp: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook), None),
    # In one bucket: over Gloo the hook mixes up the operations of several buckets.
    **{
        f"PowerSGD rank {rank}": (functools.partial(_use_power_sgd, rank=rank), 10_000)
        for rank in (1, 2, 4)
    },
}


def counters(interface: str) -> tuple[float, int, float]:
    """Returns seconds, bytes sent through the interface, and CPU seconds of this process."""
    sent = int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())
    return time.perf_counter(), sent, time.process_time()


def _lenet_slim() -> nn.Module:
    return nn.Sequential(
        *_convs(1, (32,), 5),
        nn.MaxPool2d(2),
        *_convs(32, (64,), 5),
        nn.MaxPool2d(2),
        *_top(7 * 7 * 64, (1024,), 10),
    )


def _alexnet_v2() -> nn.Module:
    # 50.3 million parameters.
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 11, stride=4), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(*_convs(64, (192,), 5), nn.MaxPool2d(3, 2)),
        *(*_convs(192, (384, 384, 256), 3), nn.MaxPool2d(3, 2)),
        *_top(5 * 5 * 256, (4096, 4096), 1000),
    )


def _vgg_16() -> nn.Module:
    # 138.4 million parameters.
    layers, channels = [], 3
    for filters, count in _VGG_16:
        layers += [*_convs(channels, (filters,) * count, 3), nn.MaxPool2d(2)]
        channels = filters
    return nn.Sequential(*layers, *_top(7 * 7 * 512, (4096, 4096), 1000))


def _resnet_v1_50() -> nn.Module:
    # 25.6 million parameters.
    layers = [*_normalized(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    channels = 64
    for filters, units, stride in _RESNET_50:
        for unit in range(1, units + 1):
            layers.append(_Unit(channels, filters, stride if unit == units else 1))
            channels = 4 * filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class _Unit(nn.Module):
    """A bottleneck of the residual net."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        wide = 4 * filters
        project = nn.Sequential(*_normalized(channels, wide, 1, stride))
        self.shortcut = nn.MaxPool2d(1, stride) if channels == wide else project
        self.inner = nn.Sequential(
            *_normalized(channels, filters, 1),
            nn.ReLU(),
            *_normalized(filters, filters, 3, stride),
            nn.ReLU(),
            *_normalized(filters, wide, 1),
        )

    def forward(self, net: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.shortcut(net) + self.inner(net))


class Cifar10AlexNet(nn.Module):
    """cifar10_alexnet of slim/nets/alexnet.py; the names of its layers are the suite's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 5, padding="same")
        self.conv2 = nn.Conv2d(64, 64, 5, padding="same")
        self.fc3 = nn.Linear(6 * 6 * 64, 384)
        self.fc4 = nn.Linear(384, 192)
        self.logits = nn.Linear(192, 10)
        # With `ceil_mode`, windows may end outside, on the right and below: TensorFlow's SAME.
        self._pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self._normalize = nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the logits [N, 10] of images [N, 3, 24, 24]."""
        net = self._normalize(self._pool(torch.relu(self.conv1(images))))
        net = self._pool(self._normalize(torch.relu(self.conv2(net))))
        net = net.permute(0, 2, 3, 1).flatten(1)  # TensorFlow's order of values
        return self.logits(torch.relu(self.fc4(torch.relu(self.fc3(net)))))


def _convs(channels: int, filters: tuple[int, ...], size: int) -> Iterator[nn.Module]:
    for count in filters:
        yield from (nn.Conv2d(channels, count, size, padding="same"), nn.ReLU())
        channels = count


def _top(inputs: int, units: tuple[int, ...], classes: int) -> Iterator[nn.Module]:
    yield nn.Flatten()
    for count in units:
        yield from (nn.Linear(inputs, count), nn.ReLU(), nn.Dropout(0.5))
        inputs = count
    yield nn.Linear(inputs, classes)


def _normalized(channels: int, filters: int, size: int, stride: int = 1) -> tuple[nn.Module, ...]:
    padding = (size - 1) // 2
    conv = nn.Conv2d(channels, filters, size, stride=stride, padding=padding, bias=False)
    return conv, nn.BatchNorm2d(filters)


_NETS: Mapping[str, _Net] = {
    "lenet_slim": _Net(_lenet_slim, (1, 28, 28), 10),
    "cifar10_alexnet": _Net(Cifar10AlexNet, (3, 24, 24), 10),
    "alexnet_v2": _Net(_alexnet_v2, (3, 224, 224), 1000),
    "vgg_16": _Net(_vgg_16, (3, 224, 224), 1000),
    "resnet_v1_50": _Net(_resnet_v1_50, (3, 224, 224), 1000),
}


if __name__ == "__main__":
    main()
