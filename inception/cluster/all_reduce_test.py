"""Workers that exchange without parameter servers: a transport that is gone, and signals."""

import re
import signal

import pytest

from inception.cluster import members
from inception.testing.runs import (
    Run,
    commands_of,
    flags_of,
    paced_flags_of,
    tls_flags,
)
from terngrad.testing.addresses import free_ports
from terngrad.testing.certificates import make_certificates
from terngrad.testing.processes import finished
from terngrad.training import checkpoints


@pytest.mark.slow
def test_law_10_a_transport_that_is_gone_is_named_to_all(tmp_path):
    program, flags = flags_of(tmp_path, batch_size=2)
    commands = commands_of(program, flags, members.worker_flags(2, free_ports))
    transports = ({"TERNGRAD_TRANSPORT": name} for name in ("sockets", "tensorflow"))
    (chief, _), (other, _) = found = finished(commands, list(transports))
    why = "TERNGRAD_TRANSPORT is 'tensorflow'; allowed is sockets: all-reduce over TensorFlow's"
    assert why in other.splitlines()[-1]
    assert re.search(rf"worker 1 \(.*\) failed: {why}", chief), chief
    for output, status in found:
        assert status and "Traceback" not in output, output


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
