"""How a worker opens a stream, and its messages about the end of one."""

import threading
import time
from concurrent import futures
from types import SimpleNamespace

import grpc
import pytest

from terngrad.cluster.channel import MembershipError
from terngrad.service.calls import open_channel, open_stream, why_ended
from terngrad.service.messages import SERVICE
from terngrad.service.streams import hello, identity

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


def test_a_ps_that_hangs_but_answers_pings_is_lost_after_the_timeout():
    ends = threading.Event()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    hang = grpc.stream_stream_rpc_method_handler(lambda *_: iter([ends.wait()]), identity, identity)
    handler = grpc.method_handlers_generic_handler(SERVICE, {"Exchange": hang})
    server.add_generic_rpc_handlers([handler])
    host = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    began = time.monotonic()
    try:
        with (
            open_channel(host, None, 1.0) as channel,
            pytest.raises(MembershipError, match=r"within 1 s: it accepts connections but does"),
        ):
            open_stream(channel, "Exchange", hello(0, 0, [host], ["a:1"]), 1.0)
    finally:
        ends.set()
        server.stop(0)
    assert time.monotonic() - began >= 1.0
