"""How much CPU time does a parameter server need per gradient value and worker?

Starts one ps and workers on this machine, without a network of their own, and exchanges a net's
gradients as exchange_benchmark does.

python -m benchmarks.ps_benchmark --json=figures.json
"""

import dataclasses
import statistics

from benchmarks import host_network, report
from benchmarks.exchange_benchmark import measure
from benchmarks.exchange_worker import NETS, Workload
from inception.flags.table import at_least, flag, one_of

_SECS = 600.0
_EXCHANGES = {1: "ternary", 32: "float32"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(report.Options):
    net: str = flag("Data", one_of(*NETS), "alexnet", f"pushes gradients: {', '.join(NETS)}")
    workers: int = flag("Distributed", at_least(1), 2, "number of workers", "workers")
    rounds: int = flag("Runtime", at_least(1), 20, "measured steps", "steps")
    bits: int = flag("TernGrad", one_of(*_EXCHANGES), 1, "1 = codes, 32 = floats")


def main(options: _Options) -> None:
    """Prints CPU time per value and milliseconds per step."""
    workload = Workload(
        gradients=(options.net,),
        exchanges=(_EXCHANGES[options.bits],),
        rounds=options.rounds,
        cell_secs=_SECS,
    )
    with host_network.network(options.workers + 1, host_network.Loopback) as network:
        (cell,) = measure(workload, network, "parameter_server", 1, _SECS)
    figures = {
        "net": options.net,
        "values": cell["values"],
        "workers": options.workers,
        "bits": options.bits,
        "ps_cpu_ns_by_value_and_worker": cell["ps_cpu_ns_by_value_and_worker"],
        "ms_by_step": statistics.median(cell["ms"]),
    }
    report.print_lines(figures)
    report.conclude(options, {"figures": figures})


if __name__ == "__main__":
    report.run(main, _Options)
