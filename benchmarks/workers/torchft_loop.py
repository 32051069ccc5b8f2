"""One process of a training with torchft that prints each step, for benchmarks/fault_benchmark.py.

python torchft_loop.py VALUES PAUSE_MS TIMEOUT_SECS LIGHTHOUSE RANK ADDRESS

or, for the process that decides which workers take part:

python torchft_loop.py lighthouse PORT
"""

import datetime
import socket
import sys
import threading
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torchft
from torchft.coordination import LighthouseServer


def lighthouse(port: int) -> None:
    """Decides which workers take part, until it is killed."""
    server = LighthouseServer(bind=f"[::]:{port}", min_replicas=1)  # with its own time-outs
    print(server.address(), flush=True)
    threading.Event().wait()


def train(
    values: int, pause_secs: float, timeout_secs: float, lighthouse: str, rank: int, address: str
) -> None:
    """Trains until it is killed; a step exchanges `values` random gradient values, with momentum.

    The other processes reach this one at `address`.
    """
    torch.set_num_threads(1)
    # torchft and gloo find their own address by the machine's name, which hosts of a network on
    # one machine share.
    socket.gethostname = lambda: address
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    weight = torch.nn.Parameter(torch.zeros(values))
    plain = torch.optim.SGD([weight], lr=0.01, momentum=0.9)
    timeout = datetime.timedelta(seconds=timeout_secs)

    def load(state: dict) -> None:
        with torch.no_grad():
            weight.copy_(state["weight"])
        plain.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timeout),
        load_state_dict=load,
        state_dict=lambda: {"weight": weight.detach(), "optimizer": plain.state_dict()},
        min_replica_size=1,
        timeout=timeout,
        rank=0,
        world_size=1,
        store_addr=address,
        store_port=store.port,
        hostname=address,
        lighthouse_addr=lighthouse,
        replica_id=f"worker{rank}_",
    )
    optimizer = torchft.Optimizer(manager, plain)
    gradient = torch.randn(values, generator=torch.Generator().manual_seed(rank))
    while True:
        optimizer.zero_grad()
        weight.grad = gradient.clone()
        manager.allreduce(weight.grad).wait()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            print(f"step {manager.current_step()}", flush=True)
        time.sleep(pause_secs)


def main(arguments: Sequence[str]) -> None:
    """Runs the process that the command line names."""
    if arguments[0] == "lighthouse":
        lighthouse(int(arguments[1]))
    values, pause_ms, timeout_secs, lighthouse_address, rank, address = arguments
    pause_secs = float(pause_ms) / 1000
    train(int(values), pause_secs, float(timeout_secs), lighthouse_address, int(rank), address)


if __name__ == "__main__":
    main(sys.argv[1:])
