"""Options for gRPC, and when it is too late to set them."""

import os
import sys

from terngrad.service.reading import wait_for_frames


def test_grpc_is_told_before_it_is_imported(monkeypatch):
    monkeypatch.setenv("GRPC_EXPERIMENTS", "")  # so that it is restored
    monkeypatch.delenv("GRPC_EXPERIMENTS")
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert not wait_for_frames()
    assert "GRPC_EXPERIMENTS" not in os.environ
    monkeypatch.delitem(sys.modules, "grpc")
    assert wait_for_frames()
    assert "tcp_rcv_lowat" in os.environ["GRPC_EXPERIMENTS"]


def test_options_that_the_user_has_set_stay(monkeypatch):
    monkeypatch.setenv("GRPC_EXPERIMENTS", "")
    monkeypatch.delitem(sys.modules, "grpc", raising=False)
    assert not wait_for_frames()
    assert os.environ["GRPC_EXPERIMENTS"] == ""
