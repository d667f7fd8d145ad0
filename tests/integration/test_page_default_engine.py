"""The page and the models that come with the server: a recorded voice talks with them."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from duologue.codecs.picture import decode_picture
from load_tests.server import serving
from tests.visit import (
    VOICE,
    Visits,
    open_browser,
    silence,
    write_camera,
    write_microphone,
)

pytestmark = [pytest.mark.browser, pytest.mark.weights, pytest.mark.timeout(420)]

COFFEE = Path(__file__).parent.parent / "data" / "pictures" / "coffee.jpg"
PATIENCE_MS = 180_000
"""The models may have to share their cores with other work."""


class Chat:
    """A chat endpoint that says whether a cup is in the prompt."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                said = chat.answer(json.dumps(body["messages"]))
                choice = {"index": 0, "delta": {"content": said}, "finish_reason": None}
                end = {"index": 0, "delta": {}, "finish_reason": "stop"}
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for part in (choice, end):
                    event = {"object": "chat.completion.chunk", "choices": [part]}
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def answer(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return "I see a cup." if "cup" in prompt else "I see nothing at all."


@pytest.fixture
def chat() -> Iterator[Chat]:
    chat = Chat()
    thread = threading.Thread(target=chat.server.serve_forever)
    thread.start()
    yield chat
    chat.server.shutdown()
    chat.server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """It sees a cup of coffee."""
    folder = tmp_path_factory.mktemp("devices")
    picture = decode_picture(COFFEE.read_bytes())
    height, width = (size // 2 * 2 for size in picture.shape[:2])
    camera = write_camera(folder / "camera.y4m", picture[:height, :width])
    with open_browser(write_microphone(folder / "silence.wav", silence(1)), camera) as browser:
        yield browser


def test_a_person_talks_with_the_models_and_interrupts_them(browser: Browser) -> None:
    wish = "Whatever you are asked, tell a long story of many sentences."
    with serving(["--lite"], seconds=240) as server:
        visits = Visits(browser, server.url, instructions=wish)
        page = visits(script=VOICE)
        page.page.click("#talk")
        page.until("d.state.kind === 'webrtc' && d.state.activity === 'Listening'")
        page.say()
        page.until("d.items.some(i => i.role === 'user' && /weather/i.test(i.text))", PATIENCE_MS)
        page.until("d.playedMs > 500 && d.state.activity === 'Speaking'", PATIENCE_MS)
        loud = page.stats("inbound-rtp")["totalAudioEnergy"]
        assert loud > 0.0001
        page.say()
        page.until("d.items.some(i => i.cutAtMs > 0)", PATIENCE_MS)
        page.page.wait_for_timeout(300)  # what was on its way, and the browser's own delay
        cut = page.stats("inbound-rtp")
        page.page.wait_for_timeout(400)
        later = page.stats("inbound-rtp")
        assert later["totalAudioEnergy"] - cut["totalAudioEnergy"] < 0.02 * cut["totalAudioEnergy"]
        item = page.read("d.items.find(i => i.cutAtMs > 0)")
        assert item["text"].startswith(item["heard"])
        assert page.read("d.counters.interruptions") == 1
        page.is_well()
        visits.close()


def test_what_the_camera_shows_changes_the_answer(browser: Browser, chat: Chat) -> None:
    with serving(["--chat-url", chat.url, "--chat-model", "any"], seconds=240) as server:
        visits = Visits(browser, server.url)
        page = visits(script=VOICE)
        page.type("What do you see?")
        page.until("d.items.some(i => i.text === 'I see nothing at all.')", PATIENCE_MS)
        page.page.click("#camera")
        page.until("d.state.camera")
        page.page.wait_for_function(
            """async () => [...(await calls[0].getStats()).values()]
              .some((entry) => entry.type === "outbound-rtp" && entry.framesSent > 15)""",
            timeout=PATIENCE_MS,
        )
        asked = 1
        while not page.read("d.items.some(i => i.text === 'I see a cup.')"):
            asked += 1
            page.type("What do you see now?")
            answers = "d.items.filter(i => i.role === 'assistant' && i.final).length"
            page.until(f"{answers} === {asked}", PATIENCE_MS)
        assert "camera" not in chat.prompts[0]
        assert "You see through the user's camera" in chat.prompts[-1]
        page.is_well()
        visits.close()
