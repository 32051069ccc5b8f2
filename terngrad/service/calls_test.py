"""The messages of a worker about the end of a stream."""

from types import SimpleNamespace

import grpc
import pytest

from terngrad.service.calls import why_ended

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "details", "text"),
    [
        (Code.FAILED_PRECONDITION, "why", "ps 0 refused this worker: why"),
        (Code.OK, "", "ps 0 ended before this worker"),
        (Code.ALREADY_EXISTS, "worker 1 has already joined", "ps 0 does not accept this worker"),
        (Code.ABORTED, "another run has begun", "ps 0 ended this worker's stream: another run"),
        (Code.CANCELLED, "", "ps 0 ended this worker's stream"),
        (Code.UNAVAILABLE, "Socket closed", "ps 0 died or cannot be reached: Socket closed"),
        (Code.UNAVAILABLE, "keepalive timeout", "ps 0 no longer answers: keepalive"),
    ],
)
def test_the_end_of_a_stream_is_explained(code, details, text):
    call = SimpleNamespace(code=lambda: code, details=lambda: details)
    assert why_ended(call, "ps 0").startswith(text)
