"""The filter for gRPC's log lines."""

from terngrad.service.handshakes import for_users

FAILED = (
    "I1121 21:33:41.111897   12822 ssl_transport_security.cc:2563] Handshake failed with error "
)
NO_CERTIFICATE = (
    "SSL_ERROR_SSL: error:100000c0:SSL routines:OPENSSL_internal:PEER_DID_NOT_RETURN_A_CERTIFICATE"
    ": Invalid certificate verification context\n"
)


def test_failed_handshakes_are_logged_once_for_each_reason():
    lines = [
        "W1121 21:33:40.761805 12604 log.cc:102] Log level INFO is not suitable for production.\n",
        FAILED + NO_CERTIFICATE,
        "Traceback: something else\n",
        FAILED + NO_CERTIFICATE,
        FAILED + "SSL_ERROR_SYSCALL: gone\n",
        "I1121 21:33:41.2   12822 server.cc:1] nobody needs this\n",
    ]
    assert list(for_users(lines)) == [
        "Refused a connection: TLS handshake failed: peer did not return a certificate\n",
        "Traceback: something else\n",
        "Refused a connection: TLS handshake failed: SSL_ERROR_SYSCALL: gone\n",
    ]


def test_a_repeated_failure_is_logged_again_after_a_minute_with_its_count():
    now = 0.0

    def lines():
        nonlocal now
        for later in (0.0, 1.0, 2.0, 61.0):
            now = later
            yield FAILED + NO_CERTIFICATE

    first = "Refused a connection: TLS handshake failed: peer did not return a certificate\n"
    assert list(for_users(lines(), lambda: now)) == [
        first,
        f"Left out 2 more lines like this one: {first}",
        first,
    ]


def test_errors_of_grpc_are_logged_once_a_minute_for_each_place():
    accept = "E1124 00:45:24.1 77 tcp_server_posix.cc:300] Failed accept4: Too many open files {}\n"
    other = "E1124 00:45:24.1 77 wakeup_fd.cc:12] pipe creation failed\n"
    lines = [accept.format(i) for i in range(500)] + [other]
    assert list(for_users(lines, lambda: 0.0)) == [accept.format(0), other]
