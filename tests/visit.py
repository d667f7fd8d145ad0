"""The page in a real browser: how it is opened, with whose voice and picture, and what it does."""

import base64
import json
import shutil
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import av
import numpy as np
import pytest
import soxr
from numpy.typing import NDArray
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    WebSocketRoute,
    sync_playwright,
)

from tests.patience import PATIENCE_S

QUESTION: Final = Path(__file__).parent / "data" / "question.wav"
CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
ELSEWHERE: Final = "duologue.test"
"""A name of this machine that browsers don't take for a secure address."""
FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1",
)
FILE_RATE: Final = 48_000
PATIENCE_MS: Final = 1000 * PATIENCE_S
"""After this a test gives up waiting: none of them waits that long when all is well."""

CHOICES = "if (!localStorage['{name}']) localStorage['{name}'] = JSON.stringify({choices});"
WATCH_CALLS = """
window.calls = [];
window.sentByCall = [];
const Connection = window.RTCPeerConnection;
if (Connection) {
  window.RTCPeerConnection = class extends Connection {
    constructor(...given) {
      super(...given);
      window.calls.push(this);
    }
  };
  const send = RTCDataChannel.prototype.send;
  RTCDataChannel.prototype.send = function (text) {
    window.sentByCall.push(JSON.parse(text));
    return send.call(this, text);
  };
}
"""
VOICE = """
const devices = navigator.mediaDevices;
const ask = devices.getUserMedia.bind(devices);
const voice = { context: null, mouth: null };
devices.getUserMedia = async (wanted) => {
  if (!wanted.audio) return ask(wanted);
  voice.context ??= new AudioContext();
  voice.mouth ??= voice.context.createMediaStreamDestination();
  return voice.mouth.stream.clone();
};
window.say = async (base64) => {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const source = voice.context.createBufferSource();
  source.buffer = await voice.context.decodeAudioData(bytes.buffer);
  source.connect(voice.mouth);
  source.start();
};
"""
"""In place of the recording that is the microphone: a person who speaks when told to."""
STATS = """
async (kind) => [...(await window.calls.at(-1).getStats()).values()]
  .filter((entry) => entry.type === kind && (entry.kind ?? "audio") === "audio")
"""


def question() -> NDArray[np.int16]:
    """A person asks something: mono at FILE_RATE."""
    with wave.open(str(QUESTION)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    return np.asarray(soxr.resample(samples, rate, FILE_RATE), np.int16)


def silence(seconds: float) -> NDArray[np.int16]:
    return np.zeros(round(seconds * FILE_RATE), np.int16)


def write_microphone(path: Path, *parts: NDArray[np.int16]) -> Path:
    """A recording that Chromium takes for what is said into its microphone."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(FILE_RATE)
        file.writeframes(np.concatenate(parts).astype("<i2").tobytes())
    return path


def write_camera(path: Path, pixels: NDArray[np.uint8]) -> Path:
    """A picture (RGB, even height and width) that Chromium takes for what its camera shows."""
    height, width, _ = pixels.shape
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
    planes = frame.to_ndarray().astype(np.uint8).tobytes()
    head = f"YUV4MPEG2 W{width} H{height} F15:1 Ip A1:1 C420jpeg\n".encode()
    path.write_bytes(head + (b"FRAME\n" + planes) * 15)
    return path


@contextmanager
def open_browser(microphone: Path, camera: Path | None = None) -> Iterator[Browser]:
    """Chromium, which hears one file once and sees the other again and again."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    files = [f"--use-file-for-fake-audio-capture={microphone}%noloop"]
    if camera is not None:
        files.append(f"--use-file-for-fake-video-capture={camera}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *files])
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page that is open, and what it complained of and asked for."""

    page: Page
    origin: str
    complaints: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)
    """Over WebSockets; what went over calls is read with `sent_by_call`."""

    def watch(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on("websocket", self._connected)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _asked(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.origin).netloc:
            self.strays.append(url)

    def _connected(self, socket: Any) -> None:
        self._asked(socket.url)
        socket.on("framesent", lambda text: self.sent.append(json.loads(text)))

    def sent_types(self) -> list[str]:
        """What the page has sent over WebSockets but audio."""
        kinds = [event["type"] for event in self.sent]
        return [kind for kind in kinds if not kind.endswith("audio_buffer.append")]

    def sent_by_call(self) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = self.page.evaluate("window.sentByCall")
        return sent

    def stats(self, kind: str) -> dict[str, Any]:
        """One entry of the statistics of the page's latest call, of its sound."""
        (entry,) = self.page.evaluate(STATS, kind)
        assert isinstance(entry, dict)
        return entry

    def until(self, condition: str, patience_ms: float = PATIENCE_MS) -> None:
        """Wait for a JavaScript condition; `d` is what the page publishes."""
        script = f"() => {{ const d = window.duologue; return d && ({condition}); }}"
        self.page.wait_for_function(script, timeout=patience_ms)

    def read(self, expression: str) -> Any:
        return self.page.evaluate(
            f"(() => {{ const d = window.duologue; return {expression}; }})()"
        )

    def type(self, text: str) -> None:
        self.page.fill("#words", text)
        self.page.press("#words", "Enter")

    def say(self) -> None:
        """The question is spoken, on a page that was opened with the script VOICE."""
        sound = base64.b64encode(QUESTION.read_bytes()).decode()
        self.page.evaluate("(sound) => say(sound)", sound)

    def is_well(self) -> None:
        assert self.complaints == []
        assert self.strays == []
        assert self.read("d.counters.errors") == []


class Visits:
    """All that were opened in one browser; closing it closes them."""

    def __init__(self, browser: Browser, url: str, **choices: str) -> None:
        """`choices`: what the page's settings are at first, by their names."""
        self._browser = browser
        self._url = url
        self._choices = choices
        self._contexts: list[BrowserContext] = []

    def __call__(
        self,
        url: str | None = None,
        *,
        script: str = "",
        route: Callable[[WebSocketRoute], None] | None = None,
        **options: Any,
    ) -> Visit:
        """Open the page: `script` runs before it, `route` stands before its WebSockets."""
        url = url or self._url
        options.setdefault("viewport", {"width": 1200, "height": 800})
        context = self._browser.new_context(**options)
        self._contexts.append(context)
        context.grant_permissions(["microphone", "camera"])
        page = context.new_page()
        chosen = CHOICES.format(name="duologue.preferences", choices=json.dumps(self._choices))
        page.add_init_script(chosen + WATCH_CALLS + script)
        if route is not None:
            page.route_web_socket("**/v1/realtime*", route)
        visit = Visit(page, url)
        visit.watch()
        page.goto(url)
        visit.until("true")
        return visit

    def close(self) -> None:
        for context in self._contexts:
            context.close()
