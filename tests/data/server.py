"""A small HTTP server on the loopback whose answers can go wrong."""

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serving(files, cut=(), stall=()):
    """Gives (address, names asked for). Files named in `cut` end halfway, those in `stall` wait there."""
    asked, stop = [], threading.Event()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.lstrip("/")
            asked.append(name)
            if name not in files:
                self.send_error(404)
                return
            data = files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if name in (*cut, *stall) else data)
            while name in stall and not stop.is_set():
                time.sleep(0.05)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        stop.set()
        server.shutdown()
        thread.join()
        server.server_close()
