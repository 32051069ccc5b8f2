"""One host of benchmarks/step_benchmark.py: steps of a net with PyTorch's DDP over Gloo.

Runs in a separate environment, which has torch and numpy only.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import ddp_nets  # the folder of a script is on its path
import torch
import torch.distributed as dist
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
    sides = {f"DDP {kind}": _side(arguments, *_KINDS[kind]) for kind in arguments.kinds.split(",")}
    for side in sides.values():
        side(_WARM_UP)
    figures = ("ms", "interface_bytes", "cpu_ms")
    cells = {name: {"side": name, **{figure: [] for figure in figures}} for name in sides}
    for name in list(sides) * arguments.rounds:
        dist.barrier()
        before = _counters(arguments.interface)
        sides[name](arguments.steps)
        wall = time.perf_counter() - before[0]
        dist.barrier()
        after = _counters(arguments.interface)
        _, sent, cpu = (now - then for now, then in zip(after, before, strict=True))
        for figure, value in zip(figures, (1000 * wall, sent, 1000 * cpu), strict=True):
            cells[name][figure].append(value / arguments.steps)
    path = Path(arguments.output_dir, f"{arguments.task_id}.json")
    path.write_text(json.dumps(list(cells.values())))
    dist.destroy_process_group()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("master", "interface", "output_dir", "net", "kinds", "optimizer"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("hosts", "task_id", "batch_size", "steps", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def _side(
    arguments: argparse.Namespace,
    hook: Callable[[DistributedDataParallel], None],
    bucket_cap_mb: int | None,
) -> Callable[[int], None]:
    net = ddp_nets.NETS[arguments.net]
    # Without copies of the moving averages, which would only add to what DDP sends.
    ddp = DistributedDataParallel(net.build(), bucket_cap_mb=bucket_cap_mb, broadcast_buffers=False)
    hook(ddp)
    return ddp_nets.steps(ddp, net, arguments.batch_size, arguments.optimizer)


def _use_power_sgd(ddp: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=_START_POWER_SGD
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


_KINDS = {  # the hook, and the size of buckets
    "float32": (lambda ddp: None, None),
    "float16": (lambda ddp: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook), None),
    # In one bucket: over Gloo the hook mixes up the operations of several buckets.
    "PowerSGD rank 1": (_use_power_sgd, 10_000),
}


def _counters(interface: str) -> tuple[float, int, float]:
    """Returns seconds, bytes sent through the interface, and CPU seconds of this process."""
    sent = int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())
    return time.perf_counter(), sent, time.process_time()


if __name__ == "__main__":
    main()
