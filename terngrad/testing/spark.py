"""Spark sessions on this machine for tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from terngrad.testing.addresses import free_ports
from terngrad.testing.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_CLUSTER = "local-cluster[2,1,1024]"  # two executors with a core and a GB each
_HOST = "127.0.0.1"
_REPO = Path(__file__).parents[2]


def skip_without_spark() -> None:
    """Skips the test where pyspark or Java is missing."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install '.[spark]'")
    if not shutil.which("java"):
        pytest.skip("there is no Java (apt-get install openjdk-17-jre-headless)")


@contextlib.contextmanager
def session(master: str = LOCAL_CLUSTER) -> Iterator[SparkSession]:
    """Yields a session whose executors find this repository."""
    skip_without_spark()
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.PYTHONPATH": str(_REPO),
        "spark.executor.memory": "1g",
        # A session of another test in this process may have left another value in Java.
        "spark.task.maxFailures": "4",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", _HOST)
        made = _started(SparkSession.builder.master(master).config(map=settings))
        made.sparkContext.setLogLevel("OFF")
        try:
            yield made
        finally:
            made.stop()


def _started(builder: SparkSession.Builder) -> SparkSession:
    """Starts Java, twice if need be: threads of this process may break the first fork."""
    from pyspark.errors import PySparkRuntimeError

    try:
        return builder.getOrCreate()
    except PySparkRuntimeError:
        return builder.getOrCreate()


@contextlib.contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[str]:
    """Yields the URL of a standalone master with workers of one core, which end with the block."""
    skip_without_spark()
    import pyspark

    script = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port, web, *worker_webs = free_ports(2 + workers)
    master = f"spark://{_HOST}:{port}"
    environment = os.environ | {"SPARK_LOCAL_IP": _HOST, "PYSPARK_PYTHON": sys.executable}
    packages = "org.apache.spark.deploy"
    commands = [[f"{packages}.master.Master", "--port", str(port), "--webui-port", str(web)]]
    for ui in worker_webs:
        own = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / str(ui))]
        commands.append([f"{packages}.worker.Worker", *own, "--webui-port", str(ui), master])
    with contextlib.ExitStack() as stack, (folder / "spark.log").open("w") as log:
        for name, *words in commands:
            process = subprocess.Popen(
                [str(script), name, "--host", _HOST, *words],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        # A session fails if its master does not answer within a minute.
        wait_until(lambda: _listens(port), f"the master at port {port}")
        yield master


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((_HOST, port)):
        return True
    return False
