"""A filter for the stderr of a ps: what gRPC writes there, in words, some lines of a kind a minute.

gRPC has no callback for failed TLS handshakes: it writes a cryptic line for each attempt, among
many other lines. The filter runs as a separate process; see `filtered_stderr` in inception/app.py.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from terngrad.service.log_limiter import LogLimiter

_GRPC_INFO = re.compile(
    r"I\d{4} |WARNING: All log messages before absl::InitializeLog|.*Log level "
)
_GRPC = re.compile(r"[WE]\d{4} [\d:.]+ +\d+ (\S+:\d+)\] ")
_FAILED = re.compile(r"I\d{4} .*Handshake failed with error (.*)")
_REASON = re.compile(r".*OPENSSL_internal:([A-Z0-9_]+)")


def for_users(lines: Iterable[str], clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
    """Yields the lines that are useful to users."""
    found: list[str] = []
    log = LogLimiter(lambda text: found.append(f"{text}\n"), clock)
    for line in lines:
        if failed := _FAILED.match(line):
            reason = _REASON.match(failed[1])
            why = reason[1].replace("_", " ").lower() if reason else failed[1].strip()
            log(f"Refused a connection: TLS handshake failed: {why}", kind="handshakes")
        elif _GRPC_INFO.match(line):
            continue
        elif of_grpc := _GRPC.match(line):
            log(line.rstrip(), kind=of_grpc[1], most=1)
        else:
            found.append(line)
        log.flush()
        yield from found
        found.clear()


if __name__ == "__main__":
    sys.stdin.reconfigure(errors="replace")
    for text in for_users(sys.stdin):
        print(text, end="", flush=True)
