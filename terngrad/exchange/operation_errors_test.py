"""What an error of an operation says, and what the others learn of an operation that failed."""

import queue

import pytest
import tensorflow as tf

from terngrad.cluster import admission
from terngrad.cluster.errors import MembershipError, SharedError
from terngrad.cluster.progress import ProcessProgress
from terngrad.connect.config import ConnectConfig
from terngrad.exchange.operation_errors import reason, watching
from terngrad.testing.addresses import free_address
from terngrad.testing.threads import TIMEOUT, hosts_of, in_threads


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Graph execution error:\n\nDetected at node TerngradJoin defined at (most recent "
            "call last):\n<stack traces unavailable>\nworker 1 (two:2) closed the connection"
            "\n\t [[{{node TerngradJoin}}]] [Op:__inference_run_12]",
            "worker 1 (two:2) closed the connection",
        ),
        (
            "Graph execution error:\n\nDetected at node x defined at (most recent call last):\n"
            '  File "a.py", line 3, in f\n\n2 root error(s) found.\n  (0) ABORTED: lost',
            "ABORTED: lost",
        ),
        ("one line", "one line"),
        (
            "{{function_node __wrapped__R_device_/job:x/task:0}} three values",
            "three values",
        ),
        ("Graph execution error:\n", "UnavailableError"),
    ],
)
def test_the_informative_line_of_an_error_is_found(message, expected):
    assert reason(tf.errors.UnavailableError(None, None, message)) == expected


def test_corrupted_bytes_blame_no_process_and_end_the_training_at_once():
    address, hosts = free_address(), hosts_of(3)
    config = lambda rank: ConnectConfig(hosts, rank, (), TIMEOUT)
    join = lambda rank: lambda: admission.join(config(rank), address)
    peers = in_threads(*map(join, range(3)))
    link = "the connection from worker 0 (host0:2222) to worker 1 (host1:2222): bytes have changed"
    error = tf.errors.UnavailableError(None, None, f"{link} on the way (TLS: bad record mac)")

    def process(rank, ends):
        # Each has its own: whoever takes another's message leaves before its own comes.
        lost, acts = queue.Queue(), [lambda: f"saved by {rank}"]
        with watching(
            config(rank), peers[rank], progress=ProcessProgress(), on_loss=lost.put, at_loss=acts
        ):
            if ends:
                raise error
            return lost.get(timeout=TIMEOUT)

    found = in_threads(
        lambda: process(0, ends=False), lambda: process(1, ends=True), lambda: process(2, False)
    )
    assert isinstance(found[1], SharedError) and str(found[1]).startswith(link)
    assert str(found[1]).endswith("; saved by 1")
    for rank in 0, 2:
        assert found[rank].startswith(f"worker {rank} (") and f") ends: {link}" in found[rank]
        assert found[rank].split("; ")[1:] == [f"saved by {rank}"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (tf.errors.UnavailableError(None, None, "why"), "why"),
        (RuntimeError("Horovod has been shut down.\n"), r"Horovod has been shut down\."),
    ],
)
def test_a_process_whose_operation_failed_saves_before_it_ends(error, why):
    acts = [lambda: "saved x"]
    text = rf"^an operation between the workers failed: {why}; saved x$"
    with (
        pytest.raises(MembershipError, match=text),
        watching(
            ConnectConfig(hosts_of(1), 0, (), 0.1), {}, progress=ProcessProgress(), at_loss=acts
        ),
    ):
        raise error


@pytest.mark.parametrize("error", [MembershipError("why"), RuntimeError("why")])
def test_the_blocks_own_error_stays_as_it_is(error):
    with (
        pytest.raises(type(error)) as raised,
        watching(
            ConnectConfig(hosts_of(1), 0, (), 0.1),
            {},
            progress=ProcessProgress(),
            at_loss=[lambda: "saved x"],
        ),
    ):
        raise error
    assert raised.value is error
