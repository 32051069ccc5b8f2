"""How a worker meets the others: by the engine that its flags name."""

from __future__ import annotations

import contextlib

from inception.cluster import collective, launched, parameter_server
from inception.cluster.workers import Workers
from inception.flags.cluster import ClusterConfig

_JOIN = {
    "collective": collective.joined,
    "mpi": launched.joined_by_mpi,
    "horovod": launched.joined_by_horovod,
    "parameter_server": parameter_server.joined,
}


def joined(cluster: ClusterConfig) -> contextlib.AbstractContextManager[Workers]:
    """Meets the other workers until the end of the block.

    Raises:
      ValueError: names a worker that did not join or was lost, or a package that is missing.
    """
    return _JOIN[cluster.engine](cluster)
