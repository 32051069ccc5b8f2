"""The flags that give a process its role in a distributed training."""

import dataclasses
import functools
from collections.abc import Sequence

from inception.flags.table import (
    BOOLEAN,
    MAX_STEPS,
    NAMES,
    TEXT,
    Checked,
    at_least,
    flag,
    number,
    one_of,
    refuse,
)
from terngrad.cluster.addresses import CONTROL_PORT_ABOVE, LAST_PORT, split_address
from terngrad.cluster.managed.role import COLLECTIVE, LAUNCHED, SERVED, control_address
from terngrad.layout import FLOAT, PULL_CODEC_NAMES
from terngrad.library.join_config import ELASTIC_WAIT_SECS

_distributed = functools.partial(flag, "Distributed")

_LONGEST_TIMEOUT_SECS = 1e6
_SYNC = "--cross_replica_sync=True"
ENGINES = (SERVED, COLLECTIVE, *LAUNCHED)
ENGINES_HELP = (
    f"{SERVED} (the default with --ps_hosts), {COLLECTIVE} (all-reduce by the workers over "
    "sockets, the default without --ps_hosts), mpi (start with mpirun) or horovod (start with "
    "horovodrun or mpirun); the last two know the workers themselves"
)
_LAUNCHERS = {"mpi": "mpirun", "horovod": "horovodrun"}  # of the engines that have their own


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterConfig(Checked):
    """Which process this is, and which processes train with it."""

    cluster: str = _distributed(
        one_of("flags", "auto"),
        "flags",
        "what names the processes: flags, or auto: TF_CONFIG, or the variables of Slurm, torchrun, "
        "a TrainJob or an MPI launcher, where a flag of this group does not say otherwise",
    )
    num_ps_tasks: int = _distributed(
        at_least(0),
        0,
        "with --cluster=auto on Slurm, with torchrun and in a TrainJob: the first tasks, this "
        "many, are parameter servers",
        "tasks",
    )
    variable_update: str | None = _distributed(
        one_of(*ENGINES), None, f"engine of the exchange: {ENGINES_HELP}"
    )
    job_name: str = _distributed(
        one_of("worker", "ps"),
        "worker",
        "role of this process: worker, or ps (parameter server), which adds what the workers send",
    )
    ps_hosts: tuple[str, ...] = _distributed(
        NAMES, (), "HOST:PORT of each ps, the same list on all"
    )
    worker_hosts: tuple[str, ...] = _distributed(
        NAMES,
        (),
        "HOST:PORT of each worker, the same list on all; with --ps_hosts these are only names",
    )
    task_id: int = _distributed(
        at_least(0),
        0,
        "index of this process in --worker_hosts or --ps_hosts; worker 0 is the chief",
    )
    worker_timeout_secs: float = _distributed(
        number(0, _LONGEST_TIMEOUT_SECS, above=True),
        60.0,
        "a worker that is silent for this long, or keeps the others waiting for this long, counts "
        "as lost and ends the training; with --ps_hosts a lost ps, and without elastic a lost "
        "worker, may come back within this time",
        "seconds",
    )
    num_replicas_to_aggregate: int = _distributed(
        at_least(1, -1),
        -1,
        "number of workers whose gradients make a step; the first to be ready count, later "
        "gradients are dropped; -1 = all; not with mpi and horovod",
        "workers",
    )
    elastic: bool = _distributed(
        BOOLEAN,
        False,
        "continue without lost workers, and let them join again; with --ps_hosts also without "
        "ps other than the first that are lost for longer than worker_timeout_secs; not with mpi "
        "and horovod",
    )
    min_workers: int = _distributed(
        at_least(1),
        1,
        "with elastic: wait for others while fewer workers are there",
        "workers",
    )
    elastic_wait_secs: float = _distributed(
        number(0, above=True),
        ELASTIC_WAIT_SECS,
        "with elastic: longest wait for min_workers, or for the larger part of a network that has "
        "split; then the training is saved and ends",
        "seconds",
    )
    control_port: int = _distributed(
        at_least(1, -1),
        -1,
        f"port at which the chief listens for the others; -1 = its own + {CONTROL_PORT_ABOVE}; not "
        "used with elastic and num_replicas_to_aggregate",
    )
    network_interface: str = _distributed(
        TEXT,
        "",
        "name of the network interface, such as eth1, at whose address this process listens, and "
        "from which it connects; unset: that of the variable TERNGRAD_INTERFACE, if any, else any; "
        "mpi and horovod have options of their own for gradients",
    )
    save_interval_secs: float = _distributed(
        number(), 600.0, "time between the chief's checkpoints; 0 = by save_iter only", "seconds"
    )
    cross_replica_sync: bool = _distributed(
        BOOLEAN,
        True,
        "all workers make each step together; False (with --ps_hosts): the ps hold the parameters "
        "and apply each worker's gradient when it arrives",
    )
    max_staleness: int = _distributed(
        at_least(0, -1),
        -1,
        "asynchronous: a worker waits while it is more than this many of its steps ahead of the "
        "slowest active worker; 0 = all keep step, -1 = no worker waits",
        "steps",
    )
    pull_bits: int = _distributed(
        one_of(32, 16),
        32,
        "asynchronous: size of a parameter on its way to a worker; 32 = float, 16 = half precision",
        "bits",
    )
    pull_codec: str = _distributed(
        one_of(*PULL_CODEC_NAMES),
        FLOAT,
        "asynchronous: how parameters travel to a worker; float: all of them; ternary: codes of "
        "what has changed, with a float32 copy of the parameters on the ps for each worker",
    )
    ps_snapshot_steps: int = _distributed(
        at_least(0, high=MAX_STEPS),
        1000,
        "asynchronous: a ps writes a snapshot to TRAIN_DIR/ps_INDEX on its machine after this many "
        "updates, so its death loses at most as many; 0 = never",
        "updates",
    )
    ps_snapshot: int = _distributed(
        at_least(-1, high=MAX_STEPS),
        -1,
        "asynchronous: a ps that starts sets aside its snapshots of more updates than this, and "
        "goes on from the newest of the others; -1 = from the newest",
        "updates",
    )
    split_data: bool = _distributed(
        BOOLEAN,
        True,
        "each worker reads its share of the records; False: --data_dir holds only its share",
    )

    predict: bool = _distributed(
        BOOLEAN,
        False,
        "measure the network for a second before the first step, print how much faster than "
        "float gradients the training will be, and recommend a codec, a sum_codec and local_steps",
    )
    tls_ca: str = _distributed(
        TEXT,
        "",
        "parameter servers and all-reduce over sockets: PEM file of the authority that signed all "
        "certificates",
    )
    tls_cert: str = _distributed(
        TEXT,
        "",
        "PEM file of this process' certificate, which must name its host in --ps_hosts or "
        "--worker_hosts",
    )
    tls_key: str = _distributed(TEXT, "", "PEM file of the certificate's private key")
    tls_deny: str = _distributed(
        TEXT,
        "",
        "file with the serial numbers of revoked certificates, one a line "
        "(scripts/make_certs.sh --revoke); a ps reads it again when it changes, a worker of "
        "all-reduce when it starts, and with elastic or num_replicas_to_aggregate when it changes, "
        "too; a worker of a ps not at all",
    )
    allow_insecure_network: bool = _distributed(
        BOOLEAN,
        False,
        "allow ps and all-reduce on several machines without certificates: anybody who reaches "
        "them may connect or listen",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if launcher := _LAUNCHERS.get(self.engine):
            self._refuse_what_a_launcher_knows(launcher)
        else:
            self._check_hosts("worker", self.worker_hosts)
        if self.engine == SERVED:
            self._check_servers()
        else:
            self._refuse_what_is_for_servers()
        meets_at_the_chief = not self.elastic and self.num_replicas_to_aggregate == -1
        if self.engine == COLLECTIVE and meets_at_the_chief:
            self._check_control_port()
        if self.engine in (SERVED, COLLECTIVE):
            self._check_certificates()

        if not self.cross_replica_sync and self.engine != SERVED:
            why = f"needs --ps_hosts and --variable_update={SERVED}, not {self.engine}"
            raise refuse("cross_replica_sync", False, why)
        if not self.cross_replica_sync:
            self._refuse_what_is_for_steps_together()
            self._check_pulls()
            if self.job_name == "ps" and not self.ps_snapshot_steps:
                self._refuse_if_set(("ps_snapshot",), "needs --ps_snapshot_steps above 0")

    def _check_pulls(self) -> None:
        if self.job_name == "worker" and self.pull_codec != FLOAT and self.pull_bits != 32:
            why = f"must be 32 with --pull_codec={self.pull_codec}"
            raise refuse("pull_bits", self.pull_bits, why)

    def _refuse_what_is_for_steps_together(self) -> None:
        why = f"needs {_SYNC}: asynchronous workers do not wait for each other"
        self._refuse_if_set(("num_replicas_to_aggregate", "elastic", "predict"), why)

    @property
    def inert_flags(self) -> dict[str, str]:
        """Flags that have no effect in this config, and why."""
        of_worker = "max_staleness", "pull_bits", "pull_codec"
        of_ps = "ps_snapshot_steps", "ps_snapshot"
        inert = {"num_ps_tasks": "--cluster=flags"} if self.cluster == "flags" else {}
        if self.elastic:
            inert["control_port"] = "--elastic"
        elif self.num_replicas_to_aggregate != -1:
            inert["control_port"] = "--num_replicas_to_aggregate"
        if self.cross_replica_sync:
            return inert | dict.fromkeys(of_worker + of_ps, _SYNC)
        if self.job_name == "ps":
            return inert | dict.fromkeys(of_worker, "--job_name=ps: the workers' flag counts")
        return inert | dict.fromkeys(of_ps, "--job_name=worker: the flag of each ps counts")

    @property
    def engine(self) -> str:
        """The engine, also where --variable_update is not set."""
        return self.variable_update or (SERVED if self.ps_hosts else COLLECTIVE)

    @property
    def aggregated(self) -> int:
        """Number of workers whose gradients make a step."""
        needed = self.num_replicas_to_aggregate
        return needed if needed != -1 else len(self.worker_hosts)

    def _refuse_what_a_launcher_knows(self, launcher: str) -> None:
        why = f"must not be set with --variable_update={self.engine}: {launcher} names the workers"
        self._refuse_if_set(("worker_hosts", "task_id", "control_port"), why)

    def _check_hosts(self, job: str, hosts: tuple[str, ...]) -> None:
        name, given = f"{job}_hosts", ",".join(hosts)
        if not hosts:
            raise refuse(name, "", f"must list HOST:PORT of each {job}")
        for host in hosts:
            try:
                split_address(host)
            except ValueError as error:
                raise refuse(name, given, str(error)) from None
        if len(set(hosts)) < len(hosts):
            raise refuse(name, given, "each HOST:PORT must be listed once")
        if job == self.job_name and self.task_id >= len(hosts):
            why = f"must be 0 to {len(hosts) - 1}, an index of {name}"
            raise refuse("task_id", self.task_id, why)

    def _check_servers(self) -> None:
        self._check_hosts("ps", self.ps_hosts)
        why = "must not be set with --ps_hosts: the workers meet at ps 0"
        self._refuse_if_set(("control_port",), why)
        self._check_aggregated()

    def _check_aggregated(self) -> None:
        needed, workers = self.num_replicas_to_aggregate, len(self.worker_hosts)
        if needed > workers:
            why = f"must be 1 to {workers}, the number of worker_hosts, or -1"
            raise refuse("num_replicas_to_aggregate", needed, why)

    def _check_certificates(self) -> None:
        files = {"tls_ca": self.tls_ca, "tls_cert": self.tls_cert, "tls_key": self.tls_key}
        missing = [name for name, path in files.items() if not path]
        if 0 < len(missing) < len(files):
            why = "must be set: --tls_ca, --tls_cert and --tls_key are needed together"
            raise refuse(missing[0], "", why)
        if self.tls_deny and missing:
            raise refuse("tls_deny", self.tls_deny, "needs --tls_ca, --tls_cert and --tls_key")

    def _refuse_what_is_for_servers(self) -> None:
        why = f"needs --ps_hosts and --variable_update={SERVED}, not {self.engine}"
        self._refuse_if_set(("ps_hosts", "job_name"), why)
        self._check_aggregated()
        if self.engine != COLLECTIVE:
            why = f"needs --variable_update={COLLECTIVE} or {SERVED}, not {self.engine}"
            self._refuse_if_set(("elastic", "num_replicas_to_aggregate"), why)
            names = ("tls_ca", "tls_cert", "tls_key", "tls_deny", "allow_insecure_network")
            why = f"needs --variable_update={COLLECTIVE} or {SERVED}, not {self.engine}"
            self._refuse_if_set(names, why)

    def _refuse_if_set(self, names: Sequence[str], why: str) -> None:
        """Raises ValueError for the first of some flags whose value is not its default."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in names:
            value = getattr(self, name)
            if value != defaults[name]:
                raise refuse(name, value, why)

    def _check_control_port(self) -> None:
        address = self.control_address
        port = int(address.rpartition(":")[2])
        if port > LAST_PORT:
            why = f"must be 1 to {LAST_PORT}; -1 = the chief's own + {CONTROL_PORT_ABOVE} is {port}"
            raise refuse("control_port", self.control_port, why)
        if address in self.worker_hosts:
            worker = self.worker_hosts.index(address)
            why = f"{address} is the port of worker {worker}; must be a free port"
            raise refuse("control_port", self.control_port, why)

    @property
    def control_address(self) -> str:
        """HOST:PORT at which the chief listens for the others."""
        chosen = None if self.control_port == -1 else self.control_port
        return control_address(self.worker_hosts, chosen)
