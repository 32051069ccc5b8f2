"""What the programs that benchmarks run on each host share: how hosts meet, and count bytes."""

import dataclasses
import json
import os
from collections.abc import Sequence

from inception.flag_table import NAMES, TEXT, at_least, flag, one_of
from inception.flags import Threads
from terngrad.exchange.two_shot import Transport


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostOptions(Threads):
    """The flags of one host."""

    engine: str = flag("Distributed", one_of("collective", "mpi"), "collective", "what carries")
    worker_hosts: tuple[str, ...] = flag("Distributed", NAMES, (), "HOST:PORT of each host")
    task_id: int = flag("Distributed", at_least(0), 0, "index of this host")
    interface: str = flag("Distributed", TEXT, "eth0", "whose bytes are counted")
    output_dir: str = flag("Distributed", TEXT, ".", "folder for this host's cells, INDEX.json")


def connect(options: HostOptions) -> Transport:
    """Joins the other hosts."""
    if options.engine == "mpi":
        from mpi4py import MPI

        from terngrad.exchange.mpi import MpiTransport

        return MpiTransport(MPI.COMM_WORLD)
    from terngrad.exchange import collective

    return collective.start(options.worker_hosts, options.task_id)


def interface_bytes(interface: str) -> int:
    """Bytes that left through a network interface since it exists, with all headers."""
    with open(f"/sys/class/net/{interface}/statistics/tx_bytes", encoding="ascii") as file:
        return int(file.read())


def write_cells(cells: Sequence[dict], options: HostOptions, rank: int) -> None:
    """Leaves a host's figures where the benchmark finds them."""
    path = os.path.join(options.output_dir, f"{rank}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(cells, file)
