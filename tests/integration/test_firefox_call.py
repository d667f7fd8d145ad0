"""A call as a page in Firefox makes it: an answer is asked for and its sound comes.

Firefox pairs no loopback address with another, so the server listens on the machine's own.
``TEST_DUOLOGUE_FIREFOX`` is its executable.
"""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from load_tests.server import Server, serving
from tests.firefox import open_firefox

pytestmark = [pytest.mark.browser, pytest.mark.weights]

KEY = "open-sesame"
CALL = """
const connection = new RTCPeerConnection();
const call = (window.call = { connection, events: [] });
const microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
for (const track of microphone.getTracks()) connection.addTrack(track, microphone);
call.channel = connection.createDataChannel("oai-events");
call.channel.onmessage = (message) => call.events.push(JSON.parse(message.data).type);
await connection.setLocalDescription();
const response = await fetch("/v1/realtime/calls", {
  method: "POST",
  headers: { "Content-Type": "application/sdp", Authorization: "Bearer KEY" },
  body: connection.localDescription.sdp,
});
await connection.setRemoteDescription({ type: "answer", sdp: await response.text() });
return response.status;
"""
STATS = """
const stats = [...(await window.call.connection.getStats()).values()];
const { packetsReceived } = stats.find((entry) => entry.type === "inbound-rtp");
const { packetsSent } = stats.find((entry) => entry.type === "outbound-rtp");
return { packetsReceived, packetsSent };
"""


@pytest.fixture
def server() -> Iterator[Server]:
    if not os.environ.get("TEST_DUOLOGUE_FIREFOX"):
        pytest.skip("TEST_DUOLOGUE_FIREFOX names no browser")
    addresses = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not entry.address.startswith("127.")
    ]
    if not addresses:
        pytest.skip("this machine has no address but those of loopback")
    with serving(["--engine", "scripted", "--host", "0.0.0.0", "--api-keys", KEY]) as running:
        yield running


def test_a_page_in_firefox_calls_and_hears(server: Server, tmp_path: Path) -> None:
    with open_firefox(tmp_path) as firefox:
        firefox.open(server.url)
        assert firefox.run(CALL.replace("KEY", KEY)) == 201
        firefox.until("window.call.events.includes('session.created')")
        ask = json.dumps(json.dumps({"type": "response.create"}))
        firefox.run(f"window.call.channel.send({ask});")
        firefox.until("window.call.events.includes('output_audio_buffer.stopped')")
        stats = firefox.run(STATS)
        assert stats["packetsReceived"] > 20
        assert stats["packetsSent"] > 20
