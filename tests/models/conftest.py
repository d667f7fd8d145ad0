"""A package index and file host on this machine, with the faults a test asks for; and the embedded
models, each loaded once for all tests."""

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import soxr

from duologue.models.kokoro import Kokoro
from duologue.models.lockfile import Wheel
from duologue.models.piper import Piper
from duologue.models.weights import locate
from duologue.models.whisper import Whisper


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class FileHost:
    """Serves bytes by path. `requests` are the paths asked for, each with its Range header."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.answers: dict[str, list[int]] = {}
        self.cuts: dict[str, list[int]] = {}
        self.ignores_ranges = False
        self.requests: list[tuple[str, str]] = []
        host = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                host.answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def add(self, path: str, content: bytes) -> str:
        """Serve `content` at `path` and return its URL."""
        self.files[path] = content
        return self.url + path

    def asked(self, path: str) -> list[str]:
        """The Range header of each request for `path`, in order."""
        return [span for asked, span in self.requests if asked == path]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path
        span = request.headers.get("Range", "")
        self.requests.append((path, span))
        status = self.answers.get(path, [])
        content = self.files.get(path)
        if status or content is None:
            code = status.pop(0) if status else 404
            request.send_response(code)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        start = int(span.removeprefix("bytes=").split("-")[0]) if span else 0
        if start >= len(content) > 0 and span:
            request.send_response(416)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if span and not self.ignores_ranges:
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            start = 0
            request.send_response(200)
        body = content[start:]
        kind = "application/octet-stream" if path.endswith(".whl") else "text/html"
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        cuts = self.cuts.get(path, [])
        if cuts:
            request.wfile.write(body[: cuts.pop(0)])
            request.close_connection = True
        else:
            request.wfile.write(body)

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class PackageIndex(FileHost):
    """A FileHost that serves wheels by the simple repository API (PEP 503)."""

    TAG: ClassVar[str] = (
        "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )

    def add_wheel(self, package: str, members: Mapping[str, bytes], version: str = "1.0") -> Wheel:
        """Publish a wheel with these members and return its lock entry."""
        name = package.replace("-", "_")
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for member, content in members.items():
                archive.writestr(member, content)
            archive.writestr(f"{info}/METADATA", metadata)
            archive.writestr(f"{info}/WHEEL", self.TAG)
            archive.writestr(f"{info}/RECORD", "")
        content = buffer.getvalue()
        file = f"{name}-{version}-py3-none-any.whl"
        self.add(f"/files/{file}", content)
        link = f'<a href="/files/{file}#sha256={sha256(content)}">{file}</a>'
        self.add(f"/simple/{package}/", f"<!DOCTYPE html><html><body>{link}</body></html>".encode())
        return Wheel(package, version, file, len(content), sha256(content))

    def withdraw(self, wheel: Wheel) -> None:
        """Make a package vanish."""
        del self.files[f"/simple/{wheel.package}/"]
        del self.files[f"/files/{wheel.file}"]

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which pip knows this index alone."""
        return {"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null", "NO_PROXY": "*"} | {
            "PIP_INDEX_URL": f"{self.url}/simple/",
            "PIP_RETRIES": "0",
        }


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    host = PackageIndex()
    yield host
    host.close()


@pytest.fixture(scope="session")
def whisper() -> Whisper:
    return Whisper(locate("whisper-tiny.en"))


@pytest.fixture(scope="session")
def kokoro() -> Kokoro:
    return Kokoro(locate("kokoro-82m"), threads=2)


@pytest.fixture(scope="session")
def piper() -> Piper:
    return Piper(locate("piper-joe") / "en_US-joe-medium.onnx")


SENTENCE = "Could you please tell me the way to the station?"


@pytest.fixture(scope="session")
def sentence(piper: Piper) -> npt.NDArray[np.float32]:
    """Someone says SENTENCE, at 16 kHz."""
    return soxr.resample(piper.synthesize(SENTENCE), piper.rate, 16_000).astype(np.float32)
