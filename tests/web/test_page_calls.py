"""The page over WebRTC: what it makes of a call, and what it does where it can't have one."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from playwright.sync_api import Browser, Response, Route

from load_tests.server import serving
from tests.visit import (
    Visit,
    Visits,
    open_browser,
    question,
    silence,
    write_camera,
    write_microphone,
)

pytestmark = [pytest.mark.browser, pytest.mark.weights]

PIECE_MS = 100
RED = (200, 40, 40)
ASK = "Repeat the prompt as JSON. What do you see?"


class Running(Protocol):
    @property
    def url(self) -> str: ...


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """It hears a question, a pause of 12 s, the question again, silence; it sees but red."""
    said = (silence(1), question(), silence(12), question(), silence(60))
    folder: Path = tmp_path_factory.mktemp("devices")
    microphone = write_microphone(folder / "microphone.wav", *said)
    camera = write_camera(folder / "camera.y4m", np.full((480, 640, 3), RED, np.uint8))
    with open_browser(microphone, camera) as browser:
        yield browser


Visiting = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser, scripted_server: Running) -> Iterator[Visiting]:
    visits = Visits(browser, scripted_server.url)
    yield visits
    visits.close()


def heard(page: Visit) -> float:
    """The energy of all that was heard so far."""
    return float(page.stats("inbound-rtp")["totalAudioEnergy"])


# -- conversations --------------------------------------------------------------------------


def test_people_speak_are_answered_and_interrupt(visit: Visiting) -> None:
    page = visit()
    page.page.click("#talk")
    page.until("d.state.kind === 'webrtc'")
    assert page.page.inner_text("#link").split() == ["Connected", "by", "WebRTC"]
    page.until("d.items.some(i => i.role === 'assistant' && i.final && i.heard === i.text)")
    page.until("d.state.activity === 'Listening'")
    (wait,) = page.read("d.latencies")
    parts = sum(wait[part] or 0 for part in ("heard", "thought", "spoke", "answered"))
    assert parts == pytest.approx(wait["total"], abs=2)

    # A long answer is asked for in writing, and cut by the recording's second question.
    page.type("Please give me a long answer.")
    page.until("d.state.activity === 'Speaking'")
    before = heard(page)
    page.until("d.items.some(i => i.cutAtMs > 0)")
    cut = heard(page)
    assert cut - before > 0.001
    page.page.wait_for_timeout(PIECE_MS)  # what was on its way, and the browser's own delay
    still = heard(page)
    page.page.wait_for_timeout(5 * PIECE_MS)
    assert heard(page) - still < 0.01 * (cut - before)
    item = page.read("d.items.find(i => i.cutAtMs > 0)")
    assert item["text"].startswith(item["heard"])
    assert page.page.inner_text(".unheard") != ""
    page.until("d.items.filter(i => i.role === 'assistant' && i.heard).length === 3")
    said = page.page.locator(".row .name").all_inner_texts()
    assert said == ["You", "Low", "You", "Low", "You", "Low"]

    kinds = {event["type"] for event in page.sent_by_call()}
    assert kinds.isdisjoint({"conversation.item.truncate", "response.cancel"})
    assert page.sent == []
    assert page.stats("inbound-rtp")["packetsReceived"] > 50
    assert page.stats("outbound-rtp")["packetsSent"] > 50
    page.is_well()


def test_the_lines_quality_is_shown(visit: Visiting) -> None:
    page = visit()
    page.type("Please give me a long answer.")
    page.until("d.state.activity === 'Speaking'")
    for figure, unit in (("loss", "%"), ("jitter", "ms"), ("trip", "ms"), ("concealed", "%")):
        page.until(f"document.querySelector('#line-{figure}').textContent.endsWith('{unit}')")
    assert page.read("d.state.quality.lossPercent") == 0
    assert page.page.inner_text("#line-kind").strip() == "by WebRTC"
    page.is_well()


def test_escape_stops_an_answer_and_only_what_was_heard_is_remembered(visit: Visiting) -> None:
    page = visit()
    page.type("Please give me a long answer.")
    page.until("d.playedMs > 300")
    page.page.keyboard.press("Escape")
    page.until("d.items.some(i => i.cutAtMs > 0)")
    kinds = [event["type"] for event in page.sent_by_call()]
    assert "output_audio_buffer.clear" in kinds
    page.type("And now a short one.")
    page.until("d.items.filter(i => i.role === 'assistant' && i.final).length === 2")
    page.until("d.items.at(-1).heard.length > 0 && d.latencies.length === 2")
    page.is_well()


def test_an_answer_called_off_before_its_first_sound_leaves_its_figures(
    visit: Visiting, tmp_path: Path
) -> None:
    slow = {"clauses": [{"text": "In a minute.", "ms": 1000}], "first_ms": 60_000}
    script = tmp_path / "slow.json"
    script.write_text(json.dumps({"replies": [slow]}))
    with serving(["--engine", "scripted", "--script", str(script)]) as server:
        page = visit(server.url)
        page.type("Never mind.")
        page.until("d.state.response !== null")
        page.page.keyboard.press("Escape")
        page.until("d.latencies.length === 1")
        (called_off,) = page.read("d.latencies")
        assert called_off["cancelled"] == called_off["total"]
        assert page.page.locator(".unit.cancelled:visible").count() == 1
        page.is_well()
        page.page.close()


def test_a_microphone_is_muted_and_let_go_without_a_new_call(visit: Visiting) -> None:
    page = visit()
    page.type("Good day.")
    page.until("d.items.some(i => i.role === 'assistant' && i.final && i.heard)")
    assert page.page.evaluate("calls[0].getSenders()[0].track") is None
    page.page.click("#talk")
    page.until("d.state.talking && d.state.activity !== 'Connecting…'")
    page.until("calls[0].getSenders()[0].track?.enabled === true")
    page.page.click("#mute")
    page.until("calls[0].getSenders()[0].track?.enabled === false")
    page.page.click("#talk")
    page.until("calls[0].getSenders()[0].track === null")
    assert page.read("calls.length") == 1
    page.is_well()


# -- the camera -----------------------------------------------------------------------------


def prompted(page: Visit) -> str:
    """What the engine is asked when somebody asks what it sees."""
    count = page.read("d.items.length")
    page.type(ASK)
    page.until(f"d.items.length === {count + 2} && d.items.at(-1).final")
    page.page.keyboard.press("Escape")
    page.until("d.state.playing === null")
    return str(page.read("d.items.at(-1).text"))


def test_what_the_camera_shows_is_in_the_prompt_without_a_new_offer(visit: Visiting) -> None:
    page = visit()
    assert page.page.is_disabled("#camera")
    assert "camera" not in prompted(page)
    page.page.click("#camera")
    page.until("d.state.camera && document.querySelector('#self').videoWidth > 0")
    assert page.page.get_attribute("#camera", "aria-pressed") == "true"
    page.page.wait_for_function(
        """async () => [...(await calls[0].getStats()).values()]
          .some((entry) => entry.type === "outbound-rtp" && entry.framesSent > 15)"""
    )
    while "red, 640 x 480 pixels" not in prompted(page):
        page.page.wait_for_timeout(PIECE_MS)  # the first picture is on its way
    page.page.click("#camera")
    page.until("!d.state.camera && document.querySelector('#self').hidden")
    assert page.read("calls.length") == 1
    page.is_well()


# -- trouble --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [404, 500])
def test_without_calls_the_conversation_is_held_over_a_websocket(
    visit: Visiting, status: int
) -> None:
    page = visit()

    def refuse(route: Route) -> None:
        route.fulfill(status=status, body=json.dumps({"error": {"message": "There are none."}}))

    page.page.route("**/v1/realtime/calls", refuse)
    page.type("Can you hear me?")
    page.until("d.items.some(i => i.role === 'assistant' && i.final && i.playedMs > 0)")
    assert page.page.inner_text("#link").split() == ["Connected", "by", "WebSocket"]
    assert page.page.get_attribute("#line-kind", "title") == (
        "WebRTC could not be set up: There are none."
    )
    assert not page.page.is_visible("#camera")
    assert all(str(status) in said for said in page.complaints)
    assert page.strays == []


def test_a_call_that_finds_no_way_is_given_up_for_a_websocket(visit: Visiting) -> None:
    page = visit()

    def lead_astray(route: Route) -> None:
        answer = route.fetch()
        lines = answer.text().splitlines()
        kept = [line for line in lines if not line.startswith("a=candidate")]
        route.fulfill(response=answer, body="\r\n".join(kept) + "\r\n")

    page.page.route("**/v1/realtime/calls", lead_astray)
    page.page.click("#talk")
    page.until("d.state.kind === 'websocket' && d.state.fellBack !== ''")
    # What was said meanwhile is not lost.
    page.until("d.items.some(i => i.role === 'assistant' && i.final && i.heard)")
    assert page.read("d.counters.framesDropped") == 0
    page.is_well()


def test_a_browser_without_calls_talks_over_a_websocket(visit: Visiting) -> None:
    page = visit(script="delete window.RTCPeerConnection;")
    page.type("Can you hear me?")
    page.until("d.items.some(i => i.role === 'assistant' && i.final && i.playedMs > 0)")
    assert page.read("d.state.kind") == "websocket"
    page.is_well()


def test_a_full_server_is_asked_again(visit: Visiting) -> None:
    page = visit()
    full = ["All places are taken."]

    def full_at_first(route: Route) -> None:
        if not full:
            route.continue_()
            return
        error = {"code": "engine_overloaded", "message": full[0]}
        route.fulfill(status=429, body=json.dumps({"error": error}))

    page.page.route("**/v1/realtime/calls", full_at_first)
    page.type("Is there room?")
    page.until("d.state.line === 'waiting' && d.state.trouble === 'full'")
    full.clear()
    page.page.click("text=Try now")
    page.until("d.state.kind === 'webrtc' && d.state.trouble === null")
    page.until("d.items.some(i => i.role === 'assistant' && i.final)")


def test_a_lost_call_is_made_again_with_the_conversation(visit: Visiting) -> None:
    page = visit()
    places: list[str] = []

    def answered(response: Response) -> None:
        if place := response.headers.get("location"):
            places.append(place)

    page.page.on("response", answered)
    page.type("Remember this.")
    page.until("d.items.some(i => i.role === 'assistant' && i.final && i.heard)")
    before = len(page.sent_by_call())
    page.page.evaluate("(place) => fetch(place + '/hangup', { method: 'POST' })", places[0])
    page.until("d.counters.sessions === 2 && d.state.kind === 'webrtc'")
    page.type("What was it?")
    page.until("d.items.length === 4 && d.items[3].final")
    sent = page.sent_by_call()[before:]
    given = [event["item"] for event in sent if event["type"].endswith("item.create")]
    texts: list[Any] = page.read("d.items.map(i => i.text)")
    assert [item["content"][0]["text"] for item in given] == texts[:3]
    page.is_well()


def test_the_key_goes_with_the_offer(visit: Visiting) -> None:
    with serving(["--engine", "scripted", "--api-keys", "open-sesame"]) as server:
        page = visit(server.url, script="sessionStorage['duologue.key'] = 'open-sesame';")
        page.type("Good day.")
        page.until("d.items.some(i => i.role === 'assistant' && i.final && i.heard)")
        assert page.read("d.state.kind") == "webrtc"
        page.is_well()
        page.page.close()


# -- arithmetic -----------------------------------------------------------------------------


def test_the_quality_is_that_of_the_last_seconds(visit: Visiting) -> None:
    inbound = {"type": "inbound-rtp", "kind": "audio", "jitter": 0.004, "jitterBufferDelay": 0}
    first = {
        "packetsReceived": 100,
        "packetsLost": 50,
        "totalSamplesReceived": 100_000,
        "concealedSamples": 50_000,
        "silentConcealedSamples": 10_000,
        "jitterBufferEmittedCount": 1000,
    }
    second = {
        "packetsReceived": 190,
        "packetsLost": 60,
        "totalSamplesReceived": 150_000,
        "concealedSamples": 52_000,
        "silentConcealedSamples": 11_000,
        "jitterBufferEmittedCount": 3000,
        "jitterBufferDelay": 80_000 / 1000,
    }
    told = {"type": "remote-inbound-rtp", "kind": "audio", "roundTripTime": 0.05}
    reports = [
        [inbound | first],
        [inbound | second, told | {"fractionLost": 0.25}],
    ]
    figures = visit().page.evaluate(
        """async (reports) => {
          const {Quality} = await import("/static/quality.js");
          const quality = new Quality();
          const seen = [quality.now];
          for (const entries of reports) {
            quality.sample(new Map(entries.map((entry, k) => [k, entry])));
            seen.push(quality.now);
          }
          return seen;
        }""",
        reports,
    )
    assert set(figures[0].values()) == {None}
    assert figures[2] == {
        "lossPercent": 25,
        "jitterMs": 4,
        "roundTripMs": 50,
        "concealedPercent": 2,
        "delayMs": 40,
    }
