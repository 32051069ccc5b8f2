"""One host of a training of cifar10_alexnet with PyTorch's DDP over Gloo, as the suite trains it.

Runs in a separate environment, which has torch and numpy only. The net, the loss, Adam and the
moving averages are those of the suite, and so are the batches (batch_stream.py). Host 0 writes its
figures and, at each checkpoint, the averages, with the suite's names and order of axes.
"""

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.ddp.steps import KINDS, Cifar10AlexNet, connect, counters

_LOG_EVERY = 10  # steps
_IMAGE = (24, 24, 3)
_DECAYED = ("fc3.weight", "fc4.weight")
_AVERAGES_DECAY = 0.9999


def main() -> None:
    """Connects to the other hosts and trains."""
    arguments = _parse()
    connect(arguments)
    net = Cifar10AlexNet()
    net.load_state_dict(_from_suite(np.load(Path(arguments.output_dir, "initial.npz"))))
    use_hook, bucket_cap_mb = KINDS[arguments.kind]
    ddp = DistributedDataParallel(net, bucket_cap_mb=bucket_cap_mb, broadcast_buffers=False)
    use_hook(ddp)
    _train(arguments, ddp)
    dist.barrier()
    dist.destroy_process_group()


def _train(arguments: argparse.Namespace, ddp: DistributedDataParallel) -> None:
    net, is_first = ddp.module, arguments.task_id == 0
    optimizer = torch.optim.Adam(ddp.parameters(), lr=arguments.initial_learning_rate, fused=True)
    averages = {name: value.detach().clone() for name, value in net.state_dict().items()}
    decayed = [value for name, value in net.named_parameters() if name in _DECAYED]
    entropy, batches = nn.CrossEntropyLoss(), _Batches(json.loads(arguments.batches))
    before = counters(arguments.interface)
    for step in range(1, arguments.max_steps + 1):
        images, labels = batches.next(arguments.batch_size)
        optimizer.zero_grad(set_to_none=True)
        loss = entropy(ddp(images), labels)
        penalty = arguments.weight_decay / 2 * sum(weights.square().sum() for weights in decayed)
        (loss + penalty).backward()
        optimizer.step()
        _update(averages, net, step - 1)
        if step % _LOG_EVERY == 0:
            now = counters(arguments.interface)
            line = _line(step, loss, penalty, before, now)
            before = now
            if is_first:
                with Path(arguments.output_dir, "figures.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")
        if is_first and (step % arguments.save_iter == 0 or step == arguments.max_steps):
            np.savez(Path(arguments.output_dir, f"{step}.npz"), **_to_suite(averages))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("master", "interface", "output_dir", "kind", "batches"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("hosts", "task_id", "batch_size", "max_steps", "save_iter"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("initial_learning_rate", "weight_decay"):
        parser.add_argument(f"--{name}", type=float, required=True)
    return parser.parse_args()


def _from_suite(weights: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Returns the state of the net from the suite's variables: kernels are [H, W, in, out]."""
    found = {}
    for name, value in weights.items():
        axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[value.ndim]
        key = name.replace("/kernel", ".weight").replace("/bias", ".bias")
        found[key] = torch.from_numpy(value.transpose(axes).copy())
    return found


def _to_suite(state: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Undoes `_from_suite`."""
    found = {}
    for key, value in state.items():
        axes = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[value.ndim]
        name = key.replace(".weight", "/kernel").replace(".bias", "/bias")
        found[name] = value.numpy().transpose(axes)
    return found


class _Batches:
    """The batches that a command writes, images as [B, C, H, W]."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def next(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = self._read(np.float32, (size, *_IMAGE))
        labels = self._read(np.int32, (size,)).astype(np.int64)
        return torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels)

    def _read(self, kind: type[np.generic], shape: tuple[int, ...]) -> np.ndarray:
        size = np.dtype(kind).itemsize * int(np.prod(shape))
        content = self._process.stdout.read(size)
        if len(content) < size:
            raise SystemExit(f"the batches have ended early, status {self._process.wait()}")
        return np.frombuffer(content, kind).reshape(shape)


@torch.no_grad()
def _update(averages: Mapping[str, torch.Tensor], net: nn.Module, done: int) -> None:
    """Adds the weights after step `done` + 1 to the averages, as MovingAverages does."""
    kept = min(_AVERAGES_DECAY, (1 + done) / (10 + done))
    for name, value in net.state_dict().items():
        averages[name].lerp_(value, 1 - kept)


def _line(
    step: int,
    loss: torch.Tensor,
    penalty: torch.Tensor,
    before: tuple[float, int, float],
    now: tuple[float, int, float],
) -> dict[str, float]:
    secs, sent, _ = (late - early for late, early in zip(now, before, strict=True))
    mean = loss.detach().clone()  # over all hosts, as the suite logs it
    dist.all_reduce(mean)
    return {
        "step": step,
        "entropy_loss": float(mean) / dist.get_world_size(),
        "reg_loss": float(penalty.detach()),
        "bytes_sent": sent / _LOG_EVERY,
        "secs": secs / _LOG_EVERY,
    }


if __name__ == "__main__":
    main()
