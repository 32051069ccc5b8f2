"""A web server for a folder, which knows ranges and can cut a file off."""

import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path


class _Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, folder: Path, *arguments: object) -> None:
        self._folder = folder
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Sends a file from the requested byte on; addresses with ?cut end early."""
        name, _, query = self.path.lstrip("/").partition("?")
        path = self._folder / name
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : len(content) // 2 if query == "cut" else None])

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serves the files of a folder; yields the address that their names follow."""
    handler = functools.partial(_Handler, folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
