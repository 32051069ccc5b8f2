"""A worker of ps_benchmark.py: pushes buckets of zeros and waits for their sums.

python -m benchmarks.ps_worker RANK PS_HOSTS WORKER_HOSTS NET BITS ROUNDS PS_PROCESS
"""

import json
import sys
import threading
import time

import numpy as np

from benchmarks.gradients import shapes_of
from benchmarks.host import cpu_seconds
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.layout import Policy, make_layout
from terngrad.ops.choice import choose_kernels
from terngrad.ops.kernels import Kernels
from terngrad.planes import GROUP, padded

_SECS = 300.0
_WARM_UP = 3  # rounds


class _Bucket:
    """A bucket, pushed once in each round."""

    def __init__(self, client: Client, kernels: Kernels, name: str, size: int, bits: int) -> None:
        is_coded = bits == 1
        self._items = padded(size) // GROUP if is_coded else size
        self._content = np.zeros(self._items * (2 if is_coded else 1), "<u4")
        self._client, self._come = client, threading.Event()
        kind = Kind.CODES if is_coded else Kind.FLOATS
        deliver = lambda *result: self._come.set()
        operation = Operation(name, kind, self._items, 1, client.size)
        self._index = client.declare(operation, deliver, self._come.set, kernels)

    def push(self, step: int) -> None:
        self._come.clear()
        self._client.push(self._index, step, self._content)

    def wait(self) -> None:
        if not self._come.wait(_SECS) or self._client.failure:
            sys.exit(f"no result: {self._client.failure}")


def main() -> None:
    """Prints the CPU seconds of the ps and the seconds of each round."""
    rank, ps_hosts, worker_hosts, net, bits, rounds, process = sys.argv[1:]
    client = Client(ps_hosts.split(","), worker_hosts.split(","), int(rank), _SECS)
    client.meeting.stand(0, is_live=False)
    shapes = shapes_of(net)
    kernels = choose_kernels().kernels
    layout = make_layout(list(shapes), list(shapes.values()), Policy(grad_bits=1))
    buckets = [
        _Bucket(client, kernels, f"bucket {i}", bucket.size, int(bits))
        for i, bucket in enumerate(layout.buckets)
    ]
    seconds = []
    for step in range(_WARM_UP + int(rounds)):
        if step == _WARM_UP:
            cpu = cpu_seconds(process)
        start = time.perf_counter()
        for bucket in buckets:
            bucket.push(step)
        for bucket in buckets:
            bucket.wait()
        seconds.append(time.perf_counter() - start)
    cpu = cpu_seconds(process) - cpu
    found = {"cpu_seconds": cpu, "seconds": seconds[_WARM_UP:], "values": layout.size}
    print(json.dumps(found), flush=True)
    client.meeting.leave()
    client.close(is_done=True)


if __name__ == "__main__":
    main()
