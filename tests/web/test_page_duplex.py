"""The page in full duplex, over Live: both speak when they like, over a call or a WebSocket."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from playwright.sync_api import Browser

from tests.visit import VOICE, Visit, Visits, open_browser, silence, write_microphone

pytestmark = [pytest.mark.browser, pytest.mark.weights]

WAYS = pytest.mark.parametrize(
    ("line", "kind"), [("auto", "webrtc"), ("websocket", "websocket")], ids=["call", "socket"]
)
SPOKEN = "d.items.filter(i => i.role === '{}' && i.final && i.text).length >= {}"


class Running(Protocol):
    @property
    def url(self) -> str: ...


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path: Path = tmp_path_factory.mktemp("microphone") / "silence.wav"
    with open_browser(write_microphone(path, silence(1))) as browser:
        yield browser


Visiting = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser, scripted_server: Running) -> Iterator[Visiting]:
    opened: list[Visits] = []

    def open_page(**choices: str) -> Visit:
        opened.append(Visits(browser, scripted_server.url, mode="duplex", **choices))
        return opened[-1](script=VOICE)

    yield open_page
    for visits in opened:
        visits.close()


@WAYS
def test_people_speak_are_answered_and_speak_over_the_answer(
    visit: Visiting, line: str, kind: str
) -> None:
    page = visit(line=line)
    page.page.click("#talk")
    page.until(f"d.state.kind === '{kind}' && d.state.activity === 'Listening'")
    page.say()
    page.until(SPOKEN.format("assistant", 1))
    # On a machine that is short of time an utterance may come in two.
    assert page.read("d.items.map(i => i.role)")[:2] == ["user", "assistant"]
    wait = page.read("d.latencies[0]")
    assert wait["answered"] == wait["total"] > 0
    page.until("d.state.activity === 'Listening'")

    page.type("Please give me a long answer.")
    page.until("d.state.activity === 'Speaking' && d.items.at(-1).text.startsWith('Here is')")
    before = page.read("d.counters.interruptions")
    page.say()
    page.until(f"d.counters.interruptions > {before}")
    page.until(SPOKEN.format("user", 3))
    page.until(SPOKEN.format("assistant", 2))
    texts = page.read("d.items.map(i => i.text)")
    cut = texts[texts.index("Please give me a long answer.") + 1]
    assert cut.startswith("Here is")
    assert not cut.endswith("far.")

    page.page.click("#talk")
    page.until("!d.state.talking")
    if kind == "webrtc":
        assert page.stats("inbound-rtp")["totalAudioEnergy"] > 0.001
        assert page.sent == []
    else:
        assert page.sent[0]["type"] == "session.start"
        assert page.read("d.counters.framesDropped") == 0
    page.is_well()


def test_a_call_goes_on_in_the_same_session_when_the_network_has_changed(visit: Visiting) -> None:
    page = visit(line="auto")
    page.page.click("#talk")
    page.until("d.state.kind === 'webrtc' && d.state.activity === 'Listening'")
    before = page.page.evaluate("window.calls[0].remoteDescription.sdp")
    page.page.evaluate("window.dispatchEvent(new Event('online'))")
    renewed = "window.calls[0].remoteDescription.sdp !== before && "
    page.page.wait_for_function(
        f"(before) => {renewed} window.calls[0].connectionState === 'connected'", arg=before
    )
    page.say()
    page.until(SPOKEN.format("assistant", 1))
    assert page.read("d.counters.sessions") == 1
    assert page.page.evaluate("window.calls.length") == 1
    page.is_well()


def test_the_same_conversation_goes_on_in_turns_and_in_full_duplex_again(visit: Visiting) -> None:
    page = visit(line="websocket")
    page.type("Good day.")
    page.until(SPOKEN.format("assistant", 1))
    page.page.select_option("select[name=mode]", "turns")
    page.until("d.counters.sessions === 2 && d.state.line === 'open'")
    given = [event["item"] for event in page.sent if event["type"] == "conversation.item.create"]
    said = page.read("d.items.map(i => i.text)")
    assert [item["content"][0]["text"] for item in given] == said
    page.type("Good night.")
    page.until("d.items.length === 4 && d.items[3].final && d.state.playing === null")
    page.page.select_option("select[name=mode]", "duplex")
    page.until("d.counters.sessions === 3 && d.state.line === 'open'")
    start = page.sent[-1]
    starts = [event for event in page.sent if event["type"] == "session.start"]
    assert start["type"] in ("session.start", "session.input_audio.append")
    assert [message["role"] for message in starts[-1]["session"]["input"]] == [
        "user",
        "assistant",
    ] * 2
    page.is_well()
