"""A worker's calls to a ps that is gone, or answers as no ps may."""

from concurrent import futures
from unittest import mock

import pytest

from terngrad.asynchronous import remote
from terngrad.asynchronous.copies import Sent, Shadow
from terngrad.cluster.errors import MembershipError
from terngrad.testing.asynchronous import SECS, Worker, serving


@pytest.mark.slow
def test_a_worker_leaves_a_ps_that_is_gone_without_looking_for_it(tmp_path):
    with serving(tmp_path, 2) as (_, hosts):
        worker = Worker(hosts)
        worker.begin()
    assert not worker.client.leave(stop=True)  # nobody confirmed it; a search would raise an error
    assert worker.log == []


@pytest.mark.slow
def test_a_search_for_a_ps_ends_when_the_worker_is_to_end_or_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_STOP_SECS", 0.1)
    with serving(tmp_path, 2) as (_, hosts):
        stopped, closed = Worker(hosts), Worker(hosts)
        stopped.begin()
    with futures.ThreadPoolExecutor(2) as threads:
        searches = [threads.submit(worker.client.pull) for worker in (stopped, closed)]
        assert not futures.wait(searches, 0.5).done
        stopped.stopped = True
        with pytest.raises(MembershipError, match="did not come back before this worker had to"):
            searches[0].result(SECS)
        closed.client.close()
        with pytest.raises(MembershipError, match="is not called any more"):
            searches[1].result(SECS)


def test_a_ps_that_would_send_too_much_is_named_before_anything_is_allocated(tmp_path, monkeypatch):
    allocated, collect = [], remote.collect

    def collect_noting(header, *args):
        allocated.append(header.size)
        return collect(header, *args)

    monkeypatch.setattr(remote, "collect", collect_noting)
    with serving(tmp_path) as (servers, hosts):
        worker = Worker(hosts)
        worker.begin()
        servers[0].store.pulled = lambda: (servers[0].store.status, bytes(1 << 20))
        with pytest.raises(MembershipError, match="sent 1048576 bytes; allowed are"):
            worker.client.pull()
    assert allocated and not any(allocated)


def test_a_change_of_the_wrong_size_is_refused_unread_and_a_malformed_one_is_named(tmp_path):
    with serving(tmp_path) as (_, hosts):
        worker = Worker(hosts, pull_codec="ternary")
        worker.begin()
        before = worker.client.pull().parameters[0].tobytes()
        ((whole, coded),) = (copy.sizes for copy in worker.client._copies)
        text = f"sent {coded[-1] + 1} bytes; allowed are {whole[0]} or {coded[0]} to {coded[-1]}$"
        for size, named in ((coded[-1] + 1, text), (coded[-1] - 1, "ps 0 sent a malformed change")):
            sent = lambda shadow, code, content, number, size=size: Sent(
                bytes(size), number + 1, is_coded=True
            )
            with (
                mock.patch.object(Shadow, "next", sent),
                pytest.raises(MembershipError, match=named),
            ):
                worker.client.pull()
        (copy,) = worker.client._copies
        assert copy._values.tobytes() == before
        assert worker.client.pull().parameters[0].tobytes() == before  # after a gap


def test_an_error_of_a_ps_is_named_and_not_tried_again(tmp_path, capfd):
    with serving(tmp_path) as ((server,), hosts):
        worker = Worker(hosts)
        worker.begin()
        server.store.pulled = mock.Mock(side_effect=MemoryError("no room"))
        with pytest.raises(MembershipError, match=r"this ps failed: MemoryError\('no room'\)"):
            worker.client.pull()
    assert "Traceback" in capfd.readouterr().err
