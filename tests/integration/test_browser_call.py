"""A call as a page makes it: Chromium's own RTCPeerConnection, a recorded voice to say.

``TEST_DUOLOGUE_AGENTS_REALTIME`` is the file ``dist/bundle/openai-realtime-agents.umd.js`` of the
npm package ``@openai/agents-realtime``, for the test that needs it.
"""

import os
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from playwright.sync_api import Page, sync_playwright

from tests.visit import CHROMIUM, FLAGS, PATIENCE_MS, QUESTION

pytestmark = [pytest.mark.browser, pytest.mark.weights]

CALL = """
async () => {
  const connection = new RTCPeerConnection();
  const call = (window.call = { connection, events: [] });
  const microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
  for (const track of microphone.getTracks()) connection.addTrack(track, microphone);
  call.channel = connection.createDataChannel("oai-events");
  call.channel.onmessage = (message) => call.events.push(JSON.parse(message.data));
  connection.ontrack = (event) => {
    call.loudspeaker = new Audio();
    call.loudspeaker.srcObject = event.streams[0];
    call.loudspeaker.play();
  };
  await connection.setLocalDescription();
  const response = await fetch("/v1/realtime/calls", {
    method: "POST",
    headers: { "Content-Type": "application/sdp" },
    body: connection.localDescription.sdp,
  });
  call.location = response.headers.get("Location");
  await connection.setRemoteDescription({ type: "answer", sdp: await response.text() });
}
"""
STATS = """
async () => Object.fromEntries(
  [...(await window.call.connection.getStats()).values()]
    .filter((entry) => ["inbound-rtp", "remote-inbound-rtp", "outbound-rtp"].includes(entry.type))
    .map((entry) => [entry.type, entry])
)
"""


@pytest.fixture(scope="module")
def microphone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The question, twice: the second time into the answer to the first."""
    with wave.open(str(QUESTION)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    voice = soxr.resample(samples, rate, 48_000)
    silence = np.zeros(48_000, np.int16)
    path = tmp_path_factory.mktemp("microphone") / "question.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(48_000)
        parts = [silence, voice, silence, silence[24_000:], voice, *[silence] * 10]
        file.writeframes(np.concatenate(parts).tobytes())
    return path


@pytest.fixture
def page(microphone: Path, scripted_server: Any) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    capture = f"--use-file-for-fake-audio-capture={microphone}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, capture])
        opened = browser.new_context(permissions=["microphone"]).new_page()
        opened.goto(scripted_server.url)
        yield opened
        browser.close()


def until(page: Page, kind: str) -> None:
    found = f"() => window.call.events.some((event) => event.type === '{kind}')"
    page.wait_for_function(found, timeout=PATIENCE_MS)


AGENTS = """
async () => {
  const { RealtimeAgent, RealtimeSession, OpenAIRealtimeWebRTC } = window.OpenAIAgentsRealtime;
  const call = (window.call = { events: [], errors: [] });
  const answer = await fetch("/v1/realtime/client_secrets", { method: "POST", body: "{}" });
  const { value } = await answer.json();
  const transport = new OpenAIRealtimeWebRTC({ baseUrl: `${location.origin}/v1/realtime/calls` });
  const agent = new RealtimeAgent({ name: "one", instructions: "Be brief." });
  const session = (call.session = new RealtimeSession(agent, { transport, model: "duologue" }));
  session.on("transport_event", (event) => call.events.push(event));
  session.on("error", (error) => call.errors.push(JSON.stringify(error)));
  session.on("history_updated", (history) => (call.history = history));
  await session.connect({ apiKey: value });
}
"""
RESTART = """
async () => {
  const { connection, location } = window.call;
  connection.restartIce();
  await connection.setLocalDescription();
  const response = await fetch(location, {
    method: "POST",
    headers: { "Content-Type": "application/sdp" },
    body: connection.localDescription.sdp,
  });
  await connection.setRemoteDescription({ type: "answer", sdp: await response.text() });
  return response.status;
}
"""
PAIRS = """
async () => [...(await window.call.connection.getStats()).values()]
  .filter((entry) => entry.type === "candidate-pair" && entry.nominated)
  .map((entry) => entry.id)
"""


def test_a_call_goes_on_over_an_ice_restart(page: Page) -> None:
    page.evaluate(CALL)
    until(page, "session.created")
    before = page.evaluate(PAIRS)
    assert page.evaluate(RESTART) == 200
    page.wait_for_function(
        f"async () => (await ({PAIRS})()).some((pair) => !{before}.includes(pair))",
        timeout=PATIENCE_MS,
    )
    page.evaluate("() => window.call.events.length = 0")
    page.evaluate('() => window.call.channel.send(\'{"type": "response.create"}\')')
    until(page, "output_audio_buffer.stopped")
    heard = page.evaluate(STATS)["inbound-rtp"]
    assert heard["totalAudioEnergy"] > 0.001


def test_a_page_is_heard_and_hears(page: Page) -> None:
    page.evaluate(CALL)
    for kind in (
        "session.created",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.committed",
        "output_audio_buffer.started",
        "response.done",
        "output_audio_buffer.stopped",
    ):
        until(page, kind)
    stats = page.evaluate(STATS)
    assert stats["inbound-rtp"]["totalAudioEnergy"] > 0.001
    assert stats["inbound-rtp"]["packetsReceived"] > 50
    assert stats["outbound-rtp"]["packetsSent"] > 50
    assert stats["remote-inbound-rtp"]["packetsLost"] == 0
    page.evaluate("() => fetch(window.call.location + '/hangup', { method: 'POST' })")
    page.wait_for_function("() => window.call.channel.readyState === 'closed'", timeout=PATIENCE_MS)


def test_openais_agents_in_the_browser_talk_and_are_interrupted(page: Page) -> None:
    bundle = os.environ.get("TEST_DUOLOGUE_AGENTS_REALTIME")
    if not bundle:
        pytest.skip("TEST_DUOLOGUE_AGENTS_REALTIME names no file")
    page.route(
        "**/agents.js", lambda route: route.fulfill(path=bundle, content_type="text/javascript")
    )
    page.add_script_tag(url=f"{page.url}agents.js")
    page.evaluate(AGENTS)
    until(page, "output_audio_buffer.started")
    until(page, "conversation.item.truncated")
    roles = page.evaluate("() => window.call.history.map((item) => item.role)")
    # On a machine that is short of time an utterance may come in two.
    assert roles[0] == "user" and "assistant" in roles
    page.evaluate(
        "() => (window.call.events.length = 0, window.call.session.sendMessage('Hello?'))"
    )
    until(page, "output_audio_buffer.started")
    typed = "(item) => item.content?.some((part) => part.text === 'Hello?')"
    assert page.evaluate(f"() => window.call.history.some({typed})")
    assert page.evaluate("() => window.call.errors") == []
