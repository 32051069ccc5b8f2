"""The role of a process in a cluster inside Spark, which its function receives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from terngrad.spark.feed import Feed


@dataclasses.dataclass(frozen=True)
class Context:
    """The place of a process.

    Attributes:
      job_name: "worker" or "ps"; "inference" in a process of `Cluster.inference`, which is alone.
      task_id: index among the processes of this job.
      worker_hosts: HOST:PORT of each worker.
      ps_hosts: the same of each parameter server.
      control_port: port at which worker 0 may listen for the others.
      tls: paths of the files "ca", "cert" and "key", by which the processes know each other.
      folder: a folder for temporary files, which are deleted after the process has ended.
      num_rows: rows of all workers in an epoch; None if Spark feeds none.
      feed: the rows of this process, none on a ps; None if Spark feeds no rows.
    """

    job_name: str
    task_id: int
    worker_hosts: tuple[str, ...] = ()
    ps_hosts: tuple[str, ...] = ()
    control_port: int = 0
    tls: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folder: str = ""
    num_rows: int | None = None
    feed: Feed | None = None

    @property
    def flags(self) -> list[str]:
        """The flags that give one of the suite's distributed programs this role."""
        place = [f"--worker_hosts={','.join(self.worker_hosts)}", f"--task_id={self.task_id}"]
        place += [f"--tls_{name}={path}" for name, path in self.tls.items()]
        if not self.ps_hosts:
            return [*place, f"--control_port={self.control_port}"]
        return [*place, f"--ps_hosts={','.join(self.ps_hosts)}", f"--job_name={self.job_name}"]
