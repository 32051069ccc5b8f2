"""Workers that exchange without parameter servers: certificates, transports and signals."""

import re
import signal

import pytest

from inception.cluster import members
from inception.testing.runs import (
    Run,
    commands_of,
    flags_of,
    paced_flags_of,
    refusal,
    tls_flags,
)
from terngrad.testing.certificates import make_certificates
from terngrad.testing.processes import finished
from terngrad.training import checkpoints


@pytest.mark.slow
def test_law_10_a_transport_that_does_not_exist_or_cannot_encrypt_is_named(tmp_path):
    _, flags = flags_of(tmp_path, batch_size=2)
    flags += [*members.worker_flags(2)[0], "--worker_timeout_secs=1"]  # the other never comes
    assert "TERNGRAD_TRANSPORT is 'udp'; allowed are sockets and tensorflow" in refusal(
        *flags, TERNGRAD_TRANSPORT="udp"
    )
    flags += tls_flags(make_certificates(tmp_path, "ours", "all"))
    assert "TLS needs TERNGRAD_TRANSPORT=sockets or parameter servers: " in refusal(
        *flags, TERNGRAD_TRANSPORT="tensorflow"
    )


@pytest.mark.slow
def test_law_10_transports_that_differ_between_workers_are_named(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=2)
    commands = commands_of(program, flags, members.worker_flags(2))
    transports = ({"TERNGRAD_TRANSPORT": name} for name in ("sockets", "tensorflow"))
    for output, status in finished(commands, list(transports)):
        assert status == 1
        why = r"TERNGRAD_TRANSPORT is tensorflow on worker 1 \(.*\) and sockets on worker 0 \(.*\)"
        assert re.search(why, output), output
        assert "Traceback" not in output


@pytest.mark.slow
def test_ctrl_c_saves_and_ends_all(tmp_path):
    tls = make_certificates(tmp_path, "ours", "all")
    folder = tmp_path / "train"
    program, flags = paced_flags_of(folder, *tls_flags(tls))
    with Run(2, program, flags) as run:
        run.wait_for("Worker 1: .* step 10,")
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 128 + signal.SIGINT, run.output
        assert "Traceback" not in run.output
    saved = re.search(r"saved (\S+model.ckpt-\d+);", run.output)[1]
    assert checkpoints.latest_checkpoint(str(folder)) == saved
