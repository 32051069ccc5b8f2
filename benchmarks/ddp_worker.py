"""One host of benchmarks/step_benchmark.py: steps of lenet_slim with PyTorch's DDP over Gloo.

Runs in a separate environment, which has torch and numpy only.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

_START_POWER_SGD = 2  # steps of plain all-reduce that its error feedback needs
_WARM_UP = 5  # steps: PyTorch rebuilds its buckets, PowerSGD starts


def main() -> None:
    """Measures the kinds of exchange in turns."""
    arguments = _parse()
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": arguments.interface, "USE_LIBUV": "0"}
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{arguments.master}",
        rank=arguments.task_id,
        world_size=arguments.hosts,
    )
    torch.manual_seed(1)
    sides = {
        "DDP float32": _side(arguments, lambda ddp: None),
        "DDP float16": _side(
            arguments, lambda ddp: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        ),
        # In one bucket: over Gloo the hook mixes up the operations of several buckets.
        "DDP PowerSGD rank 1": _side(arguments, _use_power_sgd, bucket_cap_mb=100),
    }
    for side in sides.values():
        side(_WARM_UP)
    cells = {name: {"side": name, "ms": [], "interface_bytes": []} for name in sides}
    for name in list(sides) * arguments.rounds:
        dist.barrier()
        sent, begin = _interface_bytes(arguments.interface), time.perf_counter()
        sides[name](arguments.steps)
        wall = time.perf_counter() - begin
        dist.barrier()
        sent = _interface_bytes(arguments.interface) - sent
        cells[name]["ms"].append(1000 * wall / arguments.steps)
        cells[name]["interface_bytes"].append(sent / arguments.steps)
    path = Path(arguments.output_dir, f"{arguments.task_id}.json")
    path.write_text(json.dumps(list(cells.values())))
    dist.destroy_process_group()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("master", "interface", "output_dir"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("hosts", "task_id", "batch_size", "steps", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def _side(
    arguments: argparse.Namespace,
    hook: Callable[[DistributedDataParallel], None],
    bucket_cap_mb: int | None = None,
) -> Callable[[int], None]:
    ddp = DistributedDataParallel(_lenet_slim(), bucket_cap_mb=bucket_cap_mb)
    hook(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(arguments.batch_size, 1, 28, 28)
    labels = torch.randint(0, 10, (arguments.batch_size,))
    entropy = nn.CrossEntropyLoss()

    def run(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            entropy(ddp(images), labels).backward()
            optimizer.step()

    return run


def _use_power_sgd(ddp: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=_START_POWER_SGD
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _lenet_slim() -> nn.Module:
    """Returns the net of slim/nets/lenet.py: 3,274,634 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(7 * 7 * 64, 1024),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(1024, 10),
    )


def _interface_bytes(interface: str) -> int:
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


if __name__ == "__main__":
    main()
