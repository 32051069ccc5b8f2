"""How much CPU time does a parameter server need per gradient value and worker?

Starts one ps, as the programs do, and workers that push a net's buckets without computing anything
and wait for the sums.

python -m benchmarks.ps_benchmark --json=figures.json
"""

import dataclasses
import functools
import json
import statistics
import subprocess
import sys

from absl.flags import FlagValues

from benchmarks import report
from benchmarks.gradients import NETS
from inception import app
from inception.cluster.members import members
from inception.flags import table
from inception.flags.table import TEXT, at_least, flag, one_of

_PROGRAM = "inception.mnist_distributed_train"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    net: str = flag(
        "Data", one_of(*NETS), "alexnet", f"net whose gradients are pushed: {', '.join(NETS)}"
    )
    workers: int = flag("Distributed", at_least(1), 2, "number of workers", "workers")
    rounds: int = flag("Runtime", at_least(1), 20, "measured steps", "steps")
    bits: int = flag("TernGrad", one_of(1, 32), 1, "1 = codes, 32 = floats")
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")


def main(values: FlagValues) -> None:
    """Prints CPU time per value and milliseconds per step."""
    options = table.read(_Options, values)
    found = _measure(options)
    per_worker = found["cpu_seconds"] / options.rounds / options.workers
    figures = {
        "net": options.net,
        "values": found["values"],
        "workers": options.workers,
        "bits": options.bits,
        "ps_cpu_ns_by_value_and_worker": 1e9 * per_worker / found["values"],
        "ms_by_step": 1e3 * statistics.median(found["seconds"]),
    }
    for name, value in figures.items():
        print(f"- {name}: {value:.3f}" if isinstance(value, float) else f"- {name}: {value}")
    if options.json:
        report.write_json(options.json, {"environment": report.environment(), "figures": figures})


def _measure(options: _Options) -> dict:
    """Returns the figures of worker 0."""
    cluster = members(options.workers, 1)
    flags = ["--num_intra_threads=1", "--num_inter_threads=2", *cluster[-1].flags]
    run = lambda module, *arguments: subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    processes = [run(_PROGRAM, *flags)]
    flag_values = dict(each.removeprefix("--").split("=") for each in cluster[-1].flags)
    hosts = (flag_values["ps_hosts"], flag_values["worker_hosts"])
    task = (*hosts, options.net, options.bits, options.rounds, processes[0].pid)
    try:
        for rank in range(options.workers):
            processes.append(run("benchmarks.ps_worker", rank, *task))
        outputs = [process.communicate()[0] for process in processes[1:]]
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    return json.loads(outputs[0])


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
