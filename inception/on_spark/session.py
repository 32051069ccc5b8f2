"""Connects to Spark, with errors that name the flag."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from inception.flags.table import Kind, refuse
from terngrad.launcher.hosts import WORKSPACE
from terngrad.spark.jobs import reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER = Kind(
    str,
    "a Spark master: spark://HOST:PORT, yarn, k8s://URL, local[N] or local-cluster[N,CORES,MB]",
    lambda text: re.match(r"(spark|k8s)://.|(yarn|local)$|local(-cluster)?\[[^\]]+\]$", text),
)
_GAVE_UP = "stopped SparkContext"  # Spark's error once it has called a master in vain for a minute
_SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


def open_session(
    master: str,
    name: str,
    workspace: str = "",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> SparkSession:
    """Connects to a Spark master.

    Args:
      master: its URL.
      name: name of the Spark application.
      workspace: the repository's folder on executors, where its virtual environment is; "" = the
        same as here.
      settings: further settings of Spark.

    Raises:
      ValueError: pyspark or Java is missing, or the master does not answer.
    """
    if not _MASTER.check(master):
        raise refuse("spark", master, f"must be {_MASTER.allowed}")
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        how = "bash scripts/setup.sh spark, or pip install '.[spark]'"
        raise refuse("spark", master, f"needs pyspark: {how}") from None
    if not shutil.which("java") and "JAVA_HOME" not in os.environ:
        java = "sudo apt-get install -y openjdk-17-jre-headless"
        raise refuse("spark", master, f"needs Java 17 or newer; on Debian or Ubuntu: {java}")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    # Spark would take the first python3 on PATH, which may be another version, without the suite.
    python = f"{workspace}/.venv/bin/python" if workspace else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    own = {"spark.executorEnv.PYTHONPATH": workspace or WORKSPACE, **settings}
    builder = SparkSession.builder.master(master).appName(name).config(map=_SETTINGS | own)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # of pyspark or Java
        why = reason(error)
        if _GAVE_UP in why:
            why = "no Spark master answers there, or it refused the application"
        raise refuse("spark", master, why) from error
    session.sparkContext.setLogLevel("OFF")  # the programs report what was lost
    return session
