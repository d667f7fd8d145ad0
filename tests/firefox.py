"""Firefox under a test's command, over Marionette (its own wire protocol, version 3)."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from load_tests.clock import now
from load_tests.server import free_port
from tests.patience import PATIENCE_S

PREFERENCES: Final[dict[str, bool | int | str]] = {
    "app.normandy.enabled": False,
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "media.autoplay.default": 0,
    "media.navigator.permission.disabled": True,
    "media.navigator.streams.fake": True,
    "media.peerconnection.ice.obfuscate_host_addresses": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "network.proxy.type": 0,
}


class Firefox:
    """One window."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._number = 0
        self._hear()  # it speaks first
        self._command("WebDriver:NewSession", capabilities={})
        self._command("WebDriver:SetTimeouts", script=round(PATIENCE_S * 1000))

    def _hear(self) -> Any:
        length = b""
        while (letter := self._read(1)) != b":":
            length += letter
        return json.loads(self._read(int(length)))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._connection.recv(size - len(data))
            if not piece:
                raise ConnectionError("Firefox has gone")
            data += piece
        return data

    def _command(self, name: str, **parameters: object) -> Any:
        self._number += 1
        text = json.dumps([0, self._number, name, parameters]).encode()
        self._connection.sendall(str(len(text)).encode() + b":" + text)
        _, _, error, result = self._hear()
        assert error is None, error
        return result

    def open(self, url: str) -> None:
        self._command("WebDriver:Navigate", url=url)

    def run(self, script: str) -> Any:
        """The body of an async function, in the page's own world; what it returns."""
        done = "arguments[arguments.length - 1]"
        body = f"(async () => {{ {script} }})()"
        whole = f"const done = {done}; {body}.then(done, (error) => done(String(error)));"
        options: dict[str, object] = {"args": [], "sandbox": None}
        return self._command("WebDriver:ExecuteAsyncScript", script=whole, **options)["value"]

    def until(self, condition: str) -> None:
        """Wait for a JavaScript condition."""
        pause = "await new Promise((go) => setTimeout(go, 50))"
        said = self.run(f"while (!({condition})) {pause}; return true;")
        assert said is True, said


@contextmanager
def open_firefox(folder: Path) -> Iterator[Firefox]:
    """The browser that ``TEST_DUOLOGUE_FIREFOX`` names, with a profile of its own, or a skip."""
    executable = os.environ.get("TEST_DUOLOGUE_FIREFOX")
    if not executable:
        pytest.skip("TEST_DUOLOGUE_FIREFOX names no browser")
    port = free_port()
    preferences = {**PREFERENCES, "marionette.port": port}
    lines = [f"user_pref({json.dumps(k)}, {json.dumps(v)});\n" for k, v in preferences.items()]
    (folder / "user.js").write_text("".join(lines))
    process = subprocess.Popen(
        [executable, "--headless", "--marionette", "--no-remote", "--profile", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        with _reach(port, process) as connection:
            connection.settimeout(PATIENCE_S)
            yield Firefox(connection)
    finally:
        running = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for child in running:
            if child.is_running():
                child.kill()
        process.wait(PATIENCE_S)


def _reach(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    """Once it listens."""
    end = now() + PATIENCE_S
    while process.poll() is None and now() < end:
        try:
            return socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        except OSError:
            time.sleep(0.1)
    raise ConnectionError("Firefox did not start")
