"""A filter for the stderr of a ps, which logs each kind of failed TLS handshake every 10 minutes.

gRPC has no callback for them: it writes a cryptic line for each attempt, among many other lines.
The filter runs as a separate process; see `filtered_stderr` in inception/app.py.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator

_GRPC_INFO = re.compile(
    r"I\d{4} |WARNING: All log messages before absl::InitializeLog|.*Log level "
)
_FAILED = re.compile(r"I\d{4} .*Handshake failed with error (.*)")
_REASON = re.compile(r".*OPENSSL_internal:([A-Z0-9_]+)")
_SILENT_SECS = 600.0  # between two lines about the same kind


def for_users(lines: Iterable[str], clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
    """Yields the lines that are useful to users."""
    told_at: dict[str, float] = {}
    untold: dict[str, int] = {}
    for line in lines:
        if failed := _FAILED.match(line):
            reason = _REASON.match(failed[1])
            why = reason[1].replace("_", " ").lower() if reason else failed[1].strip()
            now = clock()
            if why in told_at and now - told_at[why] < _SILENT_SECS:
                untold[why] = untold.get(why, 0) + 1
                continue
            told_at[why] = now
            more = f" ({untold.pop(why)} more since the last such line)" if why in untold else ""
            yield f"Refused a connection: TLS handshake failed: {why}{more}\n"
        elif not _GRPC_INFO.match(line):
            yield line


if __name__ == "__main__":
    sys.stdin.reconfigure(errors="replace")
    for text in for_users(sys.stdin):
        print(text, end="", flush=True)
