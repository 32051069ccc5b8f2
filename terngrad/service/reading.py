"""How a ps lets gRPC read what the workers send."""

from __future__ import annotations

import os
import sys

# Names of https://github.com/grpc/grpc/blob/master/src/core/lib/experiments/experiments.yaml: reads
# end with a frame instead of a packet (SO_RCVLOWAT), which the newer event engine does not do.
_EXPERIMENTS = "-event_engine_listener,tcp_frame_size_tuning,tcp_rcv_lowat"


def wait_for_frames() -> bool:
    """Lets this process be woken once a frame, not with each packet; returns whether it will be.

    A ps that waits for a network needs a fifth less CPU time so. To be called before grpc is
    imported, which reads $GRPC_EXPERIMENTS then; what that says already stays.
    """
    if "grpc" in sys.modules:
        return False
    return os.environ.setdefault("GRPC_EXPERIMENTS", _EXPERIMENTS) == _EXPERIMENTS
