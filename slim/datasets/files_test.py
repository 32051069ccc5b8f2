"""Laws of downloads: complete and checked or absent, resumed, with a clear error offline."""

import contextlib
import http.server
import os
import threading

import pytest

from slim.datasets import files

_CONTENT = bytes(range(256)) * 40


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves _CONTENT from the requested byte; /cut ends early, /plain ignores ranges."""

    def do_GET(self):
        asked = self.headers.get("Range")
        start = int(asked[6:-1]) if asked and self.path != "/plain" else 0
        self.server.starts.append(start)
        if start >= len(_CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(_CONTENT) - start))
        self.end_headers()
        self.wfile.write(_CONTENT[start : 1000 if self.path == "/cut" else None])

    def log_message(self, *_):
        pass


@pytest.fixture(name="server")
def _server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.starts = []
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def _is_content(path):
    with open(path, "rb") as file:
        return file.read() == _CONTENT


def test_download_gets_its_name_when_it_is_whole_and_is_not_repeated(tmp_path, server):
    path = str(tmp_path / "new" / "file")
    for _ in range(2):
        files.download(f"{server.url}/file", path, _is_content)
    assert _is_content(path) and os.listdir(tmp_path / "new") == ["file"]
    assert server.starts == [0]


def test_interrupted_download_goes_on_where_it_was_cut_off(tmp_path, server):
    path = str(tmp_path / "file")
    with pytest.raises(ValueError, match="bytes early; start again to continue"):
        files.download(f"{server.url}/cut", path, _is_content)
    assert not os.path.exists(path)
    files.download(f"{server.url}/file", path, _is_content)
    assert _is_content(path) and server.starts == [0, 1000]


def test_download_starts_over_where_the_server_knows_no_ranges(tmp_path, server):
    (tmp_path / "file.partial").write_bytes(_CONTENT[:1000])
    files.download(f"{server.url}/plain", str(tmp_path / "file"), _is_content)
    assert _is_content(tmp_path / "file")


def test_complete_but_unnamed_download_is_taken(tmp_path, server):
    (tmp_path / "file.partial").write_bytes(_CONTENT)
    files.download(f"{server.url}/file", str(tmp_path / "file"), _is_content)
    assert _is_content(tmp_path / "file")


def test_wrong_checksum_leaves_nothing(tmp_path, server):
    with pytest.raises(ValueError, match="the download is not the expected file"):
        files.download(f"{server.url}/file", str(tmp_path / "file"), lambda path: False)
    assert os.listdir(tmp_path) == []


def test_without_network_the_error_names_source_dir(tmp_path):
    with pytest.raises(ValueError, match=r"cannot download http://127.0.0.1:9/.*--source_dir"):
        files.download("http://127.0.0.1:9/file", str(tmp_path / "new" / "file"), _is_content)
    assert os.listdir(tmp_path) == []


def test_two_downloads_of_a_file_do_not_mix_and_others_are_not_refused(tmp_path, server):
    path, refusals = str(tmp_path / "file"), []

    def is_content(partial):
        """Starts another download before this one is done."""
        with pytest.raises(ValueError) as refusal:
            files.download(f"{server.url}/plain", path, _is_content)
        refusals.append(str(refusal.value))
        files.download(f"{server.url}/plain", str(tmp_path / "other"), _is_content)
        return _is_content(partial)

    files.download(f"{server.url}/file", path, is_content)
    assert refusals == [f"{path}: another process downloads it"]
    assert _is_content(path) and sorted(os.listdir(tmp_path)) == ["file", "other"]


@pytest.mark.parametrize("made", ["file.partial", "file"])
def test_what_another_download_made_meanwhile_stays(tmp_path, server, monkeypatch, made):
    connect, path = files.urllib.request.urlopen, str(tmp_path / "file")

    def slow_connect(*args, **kwargs):
        response = connect(*args, **kwargs)
        (tmp_path / made).write_bytes(_CONTENT)
        return response

    monkeypatch.setattr(files.urllib.request, "urlopen", slow_connect)
    is_partial = made.endswith(".partial")
    refused = pytest.raises(ValueError, match="another process downloads it")
    with refused if is_partial else contextlib.nullcontext():
        files.download(f"{server.url}/cut", path, _is_content)
    assert _is_content(tmp_path / made) and os.listdir(tmp_path) == [made]


def test_replacing_renames_on_success_and_removes_on_failure(tmp_path):
    path = tmp_path / "labels.txt"
    with files.replacing_text(str(path)) as file:
        file.write("0:zero\n")
        assert not path.exists()
    assert path.read_text() == "0:zero\n"
    with contextlib.suppress(KeyboardInterrupt), files.replacing_text(str(path)) as file:
        file.write("half")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["labels.txt"] and path.read_text() == "0:zero\n"


def test_a_text_is_on_the_disk_before_it_gets_its_name_and_the_name_after_it(tmp_path, monkeypatch):
    acts, path = [], str(tmp_path / "labels.txt")
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        acts.append(("sync", name, os.path.getsize(name) if os.path.isfile(name) else None))
        fsync(descriptor)

    def noted_replace(source, target):
        acts.append(("rename", source))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    with files.replacing_text(path) as file:
        file.write("0:cat\n")
    (_, temporary, _) = acts[0]
    expected = [("sync", temporary, 6), ("rename", temporary), ("sync", str(tmp_path), None)]
    assert acts == expected
