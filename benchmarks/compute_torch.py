"""One side of benchmarks/compute_benchmark.py: steps of a net in PyTorch, on one thread.

It answers as benchmarks/compute_worker.py does. It runs in a separate environment, which has torch
and numpy only.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable

import ddp_nets  # the folder of a script is on its path
import torch


def main() -> None:
    """Answers until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as TensorFlow's threads do
    torch.manual_seed(1)
    net = ddp_nets.NETS[arguments.net]
    side = ddp_nets.steps(net.build(), net, arguments.batch_size)
    print(json.dumps(_times(side, 2)), flush=True)
    answers = {"times": _times, "profile": _profile}
    for request in sys.stdin:
        kind, count = request.split()
        print(json.dumps(answers[kind](side, int(count))), flush=True)


def _times(side: Callable[[int], None], count: int) -> dict[str, float]:
    before = _now()
    side(count)
    since = (now - then for now, then in zip(_now(), before, strict=True))
    return dict(zip(("ms", "cpu_ms", "page_faults"), (each / count for each in since), strict=True))


def _now() -> tuple[float, float, float]:
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return 1000 * time.perf_counter(), 1000 * time.process_time(), faults


def _profile(side: Callable[[int], None], count: int) -> dict[str, float]:
    with torch.profiler.profile() as profile:
        side(count)
    return {each.key: each.self_cpu_time_total / 1000 / count for each in profile.key_averages()}


if __name__ == "__main__":
    main()
