"""A stock Firefox, driven over Marionette, its own protocol: lengths and JSON over a socket, no driver beside it."""

import base64
import json
import socket
import subprocess
import time
from pathlib import Path

NAMES = ("firefox-esr", "firefox")
PATIENCE_S = 60  # of a slow machine
PREFERENCES = {"marionette.port": 0, "toolkit.legacyUserProfileCustomizations.stylesheets": True}


class Firefox:
    """A window of a browser that was just started, with a profile of its own."""

    def __init__(self, path: str, profile: Path) -> None:
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES.items()]
        (profile / "chrome").mkdir(parents=True)
        (profile / "user.js").write_text("".join(lines))
        (profile / "chrome" / "userChrome.css").write_text(":root { min-width: 0 !important; }")  # as narrow as a phone
        command = [path, "--headless", "--marionette", "--no-remote", "--profile", str(profile)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._sent = 0
        try:
            self._socket = socket.create_connection(("127.0.0.1", self._port(profile)), timeout=PATIENCE_S)
            self._stream = self._socket.makefile("rb")
            self._receive()  # its greeting
            self._command("WebDriver:NewSession")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def _port(self, profile: Path) -> int:
        """Firefox takes a free one and writes it down."""
        written, until = profile / "MarionetteActivePort", time.monotonic() + PATIENCE_S
        while not (written.exists() and written.read_text()):
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("firefox does not start")
            time.sleep(0.05)
        return int(written.read_text())

    def _receive(self) -> list:
        digits = b""
        while (digit := self._stream.read(1)) != b":":
            digits += digit
        return json.loads(self._stream.read(int(digits)))

    def _command(self, name: str, **fields: object) -> dict:
        self._sent += 1
        message = json.dumps([0, self._sent, name, fields]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, value = self._receive()
        if error:
            raise RuntimeError(f"{name}: {error['message']}")
        return value

    def open(self, path: Path, width: int, height: int) -> None:
        self._command("WebDriver:SetWindowRect", width=width, height=height)
        self._command("WebDriver:Navigate", url=path.as_uri())

    def evaluate(self, function: str) -> object:
        """What a function of JavaScript gives."""
        return self._command("WebDriver:ExecuteScript", script=f"return ({function})()", args=[])["value"]

    def screenshot(self, path: Path, full: bool = False) -> None:
        path.write_bytes(base64.b64decode(self._command("WebDriver:TakeScreenshot", full=full)["value"]))

    def close(self) -> None:
        self._command("Marionette:Quit", flags=["eForceQuit"])
        self._stream.close()
        self._socket.close()
        self._process.wait(PATIENCE_S)
