"""A process leaves the others with the error that ends it, which is shown once."""

import contextlib
import signal
import sys
import time
import types

import pytest
import tensorflow as tf

from terngrad.cluster.errors import MembershipError
from terngrad.cluster.membership import was_shown
from terngrad.library.group import Group
from terngrad.testing.limits import HANG_SECS


class Membership(contextlib.AbstractContextManager):
    """Notes the error with which a process leaves the others, and has lost one of them."""

    def __exit__(self, kind, error, traceback):
        """Raises what the real one does where nobody is lost."""
        self.left_with = error
        if isinstance(error, tf.errors.OpError):
            raise MembershipError("an operation failed")


@pytest.fixture
def shown(monkeypatch):
    """Errors that Python has shown; a group that ends the program may take its signals."""
    errors = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, _: errors.append(error))
    before = signal.getsignal(signal.SIGTERM)
    yield errors
    signal.signal(signal.SIGTERM, before)


def test_who_is_lost_is_looked_for_before_an_error_is_shown(shown, capsys):
    group = Group(0, 2, membership=(membership := Membership()))
    sys.excepthook(ValueError, own := ValueError("own"), None)
    assert shown == [own]
    group.check_open()
    lost = tf.errors.UnavailableError(None, None, "closed")
    sys.excepthook(type(lost), lost, None)
    assert membership.left_with is lost
    assert shown == [own, lost]
    assert capsys.readouterr().err == "an operation failed\n"


def test_an_error_of_an_operation_is_shown_while_the_group_still_waits(shown, monkeypatch):
    class Waiting(Membership):
        def __exit__(self, kind, error, traceback):
            while not shown and time.monotonic() < deadline:
                time.sleep(0.01)
            assert shown == [own]
            super().__exit__(kind, error, traceback)

    deadline = time.monotonic() + HANG_SECS
    monkeypatch.setattr("terngrad.library.leaving._SOON_SECS", 0.01)
    Group(0, 2, membership=Waiting())
    own = tf.errors.InternalError(None, None, "own")
    sys.excepthook(type(own), own, None)
    assert shown == [own]


def test_a_step_that_was_abandoned_is_reported_in_a_line_where_a_loss_is_known(
    shown, monkeypatch, capsys
):
    class Waiting(Membership):
        def __exit__(self, kind, error, traceback):
            while group.leaving._shown is None and time.monotonic() < deadline:
                time.sleep(0.01)
            super().__exit__(kind, error, traceback)

    deadline = time.monotonic() + HANG_SECS
    monkeypatch.setattr("terngrad.library.leaving._SOON_SECS", 0.01)
    monkeypatch.setattr(sys, "__excepthook__", sys.excepthook)
    connection = types.SimpleNamespace(was_interrupted=lambda: True)
    group = Group(0, 2, connection, membership=Waiting())
    lost = tf.errors.CancelledError(None, None, "many lines")
    sys.excepthook(type(lost), lost, None)
    assert shown == []
    reported, waits, said = capsys.readouterr().err.splitlines()
    assert reported == (
        "worker 0 of 2: a step was abandoned: a worker or parameter server is away."
    )
    assert waits.startswith("worker 0 of 2 waits for its time-out")
    assert said == "an operation failed"


@pytest.mark.parametrize("hook", ["the group's", "the group's, not called", "the program's"])
def test_an_error_counts_as_shown_only_where_a_hook_has_surely_shown_it(shown, monkeypatch, hook):
    group = Group(0, 2, membership=Membership())
    monkeypatch.setattr(sys, "last_value", error := RuntimeError("own"), raising=False)
    if hook == "the program's":
        monkeypatch.setattr(sys, "excepthook", lambda kind, error, _: shown.append(error))
    if hook != "the group's, not called":
        sys.excepthook(RuntimeError, error, None)
    group.leaving._end()
    assert was_shown(error) == (shown == [error])
    assert not was_shown(RuntimeError("own"))


def test_a_process_that_stopped_with_all_others_is_no_failure(shown):
    for of_all, kind in ((False, KeyboardInterrupt), (True, SystemExit)):
        group, error = Group(0, 2, membership=(membership := Membership())), KeyboardInterrupt()
        group.leaving.stopped_by = error if of_all else KeyboardInterrupt()
        group.__exit__(KeyboardInterrupt, error, None)
        assert isinstance(membership.left_with, kind)


def test_a_program_that_ends_because_all_were_interrupted_says_so_in_a_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the group takes it
    with Group(0, 2, membership=contextlib.nullcontext()) as group:
        for is_of_all in (True, False):  # a later Ctrl-C is an error of this process
            error = KeyboardInterrupt("all stopped")
            if is_of_all:
                group.leaving.stopped_by = error
            sys.excepthook(KeyboardInterrupt, error, None)
            reported = capsys.readouterr().err
            assert (reported == "worker 0 of 2: all stopped\n") == is_of_all


def test_a_closed_group_refuses_operations():
    group = Group(0, 2)
    for operation in (group.barrier, group.begin_step):  # the second one, of graphs made before
        with pytest.raises(MembershipError, match="the group is closed"):
            operation()


def test_the_end_of_the_program_is_not_cut_short_once_it_has_left(shown):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    group = Group(0, 2, membership=Membership())
    with group:
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # the program may go on
    Group(0, 2, membership=(membership := Membership())).leaving._end()
    assert membership.left_with is None and not shown
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
