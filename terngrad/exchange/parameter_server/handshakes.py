"""A filter of a ps' stderr that tells of failed TLS handshakes: of each kind once.

gRPC leaves their log to itself: a line in its own words for each attempt, among others that nobody
needs. Runs as a process of its own, see `app.filtered_stderr`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator

_GRPC_INFO = re.compile(
    r"I\d{4} |WARNING: All log messages before absl::InitializeLog|.*Log level "
)
_FAILED = re.compile(r"I\d{4} .*Handshake failed with error (.*)")
_REASON = re.compile(r".*OPENSSL_internal:([A-Z0-9_]+)")


def told_once(lines: Iterable[str]) -> Iterator[str]:
    """The lines that are for users."""
    told: set[str] = set()
    for line in lines:
        if failed := _FAILED.match(line):
            reason = _REASON.match(failed[1])
            why = reason[1].replace("_", " ").lower() if reason else failed[1].strip()
            if why not in told:
                told.add(why)
                yield f"Refused somebody whose TLS handshake failed: {why}\n"
        elif not _GRPC_INFO.match(line):
            yield line


if __name__ == "__main__":
    sys.stdin.reconfigure(errors="replace")
    for text in told_once(sys.stdin):
        print(text, end="", flush=True)
