"""How gRPC reads the workers' messages on a ps."""

from __future__ import annotations

import os
import sys

# From https://github.com/grpc/grpc/blob/master/src/core/lib/experiments/experiments.yaml: a read
# returns a whole frame instead of a packet (SO_RCVLOWAT). The newer event engine cannot do this.
_EXPERIMENTS = "-event_engine_listener,tcp_frame_size_tuning,tcp_rcv_lowat"


def wait_for_frames() -> bool:
    """Makes gRPC wake this process once a frame, not once a packet; returns whether it does.

    This saves a ps on a slow network a fifth of its CPU time. Call it before grpc is imported,
    because the import reads $GRPC_EXPERIMENTS. It does not change a value that is set already.
    """
    if "grpc" in sys.modules:
        return False
    return os.environ.setdefault("GRPC_EXPERIMENTS", _EXPERIMENTS) == _EXPERIMENTS
