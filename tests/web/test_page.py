"""The page over a WebSocket: with a recorded voice as its microphone, and its audio worklets."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from playwright.sync_api import Browser, WebSocketRoute

from load_tests.server import serving
from tests.visit import ELSEWHERE, Visit, Visits, open_browser, question, silence, write_microphone

pytestmark = [pytest.mark.browser, pytest.mark.weights]


class Running(Protocol):
    @property
    def url(self) -> str: ...


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """It hears a question, a pause of 12 s, the question again, silence."""
    said = (silence(1), question(), silence(12), question(), silence(60))
    path: Path = tmp_path_factory.mktemp("microphone") / "microphone.wav"
    with open_browser(write_microphone(path, *said)) as browser:
        yield browser


Visiting = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser, scripted_server: Running) -> Iterator[Visiting]:
    """Open the page, which is told to talk over a WebSocket."""
    visits = Visits(browser, scripted_server.url, line="websocket")
    yield visits
    visits.close()


# -- conversations --------------------------------------------------------------------------


def test_people_speak_are_answered_and_interrupt(visit: Visiting) -> None:
    page = visit()
    page.page.click("#talk")

    page.until("d.items.filter(i => i.role === 'user' && i.final && i.text).length === 1")
    page.until("d.items.some(i => i.role === 'assistant' && i.final && i.heard)")
    page.until("d.state.activity === 'Listening'")
    assert page.read("d.underruns") == 0
    (wait,) = page.read("d.latencies")
    parts = sum(wait[part] or 0 for part in ("heard", "thought", "spoke", "answered"))
    assert parts == pytest.approx(wait["total"], abs=2)
    assert page.page.locator(".row.voice .total").count() == 1

    # A long answer is asked for in writing, and cut by the recording's second question.
    page.type("Please give me a long answer.")
    page.until("d.state.activity === 'Speaking'")
    page.until("d.items.some(i => i.cutAtMs > 0)")
    cut = page.read("d.items.find(i => i.cutAtMs > 0)")
    page.until("document.querySelector('.unheard')?.textContent !== ''")
    (truncate,) = (e for e in page.sent if e["type"] == "conversation.item.truncate")
    assert (truncate["item_id"], truncate["audio_end_ms"]) == (cut["id"], cut["cutAtMs"])
    assert 0 < cut["cutAtMs"] < cut["audioMs"]
    assert cut["text"].startswith(cut["heard"])
    assert "response.cancel" not in page.sent_types()
    page.until("d.items.filter(i => i.role === 'user' && i.final && i.text).length === 3")
    page.until("d.items.filter(i => i.role === 'assistant' && i.heard).length === 3")
    said = page.page.locator(".row .name").all_inner_texts()
    assert said == ["You", "Low", "You", "Low", "You", "Low"]

    page.page.click("#talk")
    page.until("d.state.talking === false && d.state.playing === null")
    assert page.read("d.counters.framesDropped") == 0
    page.is_well()


def test_a_typed_message_is_answered_aloud_and_escape_stops_it(visit: Visiting) -> None:
    page = visit()
    page.type("Please give me a long answer.")
    page.until("d.playedMs > 300")
    assert page.read("d.counters.framesSent") == 0
    page.page.keyboard.press("Escape")
    page.until("d.state.playing === null && d.state.response === null")
    (item,) = page.read("d.items.filter(i => i.role === 'assistant')")
    assert item["cutAtMs"] >= 300
    kinds = page.sent_types()
    assert kinds.index("conversation.item.truncate") < kinds.index("response.cancel")

    page.type("And now a short one.")
    page.until("d.items.filter(i => i.role === 'assistant' && i.final).length === 2")
    page.until("d.items.at(-1).heard.length > 0 && d.latencies.length === 2")
    (first, second) = page.read("d.latencies")
    assert first["heard"] is None
    parts = sum(second[part] or 0 for part in ("thought", "spoke", "answered"))
    assert parts == pytest.approx(second["total"], abs=2)
    page.is_well()


def test_the_keyboard_starts_mutes_and_stops(visit: Visiting) -> None:
    page = visit()
    page.page.keyboard.press("Space")
    page.until("d.state.talking && d.state.line === 'open'")
    assert page.page.get_attribute("#talk", "aria-pressed") == "true"
    assert page.page.get_attribute("#talk", "aria-label") == "Stop talking"
    page.page.focus("#mute")
    page.page.keyboard.press("Enter")
    page.until("d.state.muted && d.state.activity === 'Muted'")
    sent = page.read("d.counters.framesSent")
    page.until(f"d.counters.framesSent > {sent + 10}")
    last = page.sent[-1]
    assert last["type"] == "input_audio_buffer.append"
    assert set(last["audio"].rstrip("=")) == {"A"}
    page.page.focus("#talk")
    page.page.keyboard.press("Space")
    page.until("!d.state.talking && !d.state.muted")
    page.page.focus("#words")
    page.page.keyboard.type("a space")
    assert page.page.input_value("#words") == "a space"
    assert page.read("d.state.talking") is False
    page.is_well()


def test_a_new_voice_goes_on_with_the_same_conversation(visit: Visiting) -> None:
    page = visit()
    page.type("Good day.")
    page.until("d.items.some(i => i.role === 'assistant' && i.final && i.heard)")
    page.until("d.state.playing === null")
    said = page.read("d.items.map(i => i.text)")
    page.page.select_option("select[name=voice]", "high")
    page.until("d.counters.sessions === 2 && d.state.line === 'open'")
    given = [event["item"] for event in page.sent if event["type"] == "conversation.item.create"]
    assert [item["content"][0]["text"] for item in given[-2:]] == said
    assert [item["role"] for item in given[-2:]] == ["user", "assistant"]
    updates = [e["session"] for e in page.sent if e["type"] == "session.update"]
    assert updates[-1]["audio"]["output"]["voice"] == "high"
    assert page.page.inner_text("#voice-name") == "High"
    page.type("Good night.")
    page.until("d.items.length === 4 && d.items[3].heard")
    page.is_well()


# -- trouble --------------------------------------------------------------------------------

NO_MICROPHONE = """
navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("", "{name}"));
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NotAllowedError", "Allow it for this page"),
        ("NotFoundError", "No microphone was found"),
        ("NotReadableError", "in use elsewhere"),
    ],
)
def test_without_a_microphone_one_is_told_why_and_can_type(
    visit: Visiting, name: str, words: str
) -> None:
    page = visit(script=NO_MICROPHONE.format(name=name))
    page.page.click("#talk")
    page.page.wait_for_selector("#trouble:not([hidden])")
    assert words in page.page.inner_text("#trouble")
    assert page.read("d.state.line") == "closed"
    page.type("Can you hear me?")
    page.until("d.items.some(i => i.role === 'assistant' && i.final && i.playedMs > 0)")
    page.is_well()


def test_sound_that_does_not_start_is_told(visit: Visiting) -> None:
    deaf = "AudioContext.prototype.resume = () => new Promise(() => {});"
    silent = "Object.defineProperty(AudioContext.prototype, 'state', {value: 'suspended'});"
    page = visit(script=deaf + silent)
    page.page.click("#talk")
    page.until("d.state.trouble === 'silent' && !d.state.talking")
    assert "loudspeaker" in page.page.inner_text("#trouble")
    page.is_well()


def test_an_address_that_is_not_secure_has_a_conversation_in_text(visit: Visiting) -> None:
    with serving(["--engine", "scripted", "--allowed-hosts", ELSEWHERE]) as server:
        page = visit(server.url.replace("127.0.0.1", ELSEWHERE))
        page.page.click("#talk")
        page.page.wait_for_selector("#trouble:not([hidden])")
        assert "https" in page.page.inner_text("#trouble")
        page.type("Can you read me?")
        page.until("d.items.some(i => i.role === 'assistant' && i.final && i.heard)")
        assert page.sent[0]["session"]["output_modalities"] == ["text"]
        # What Chromium says of the header that keeps other windows out, on any such address.
        assert all("Cross-Origin-Opener-Policy" in said for said in page.complaints)
        assert page.strays == []
        page.page.close()


def test_a_key_is_asked_for_and_kept_in_this_tab_alone(visit: Visiting) -> None:
    with serving(["--engine", "scripted", "--api-keys", "open-sesame"]) as server:
        page = visit(server.url)
        page.page.fill("#key", "open-barley")
        page.page.press("#key", "Enter")
        page.page.wait_for_selector("text=did not accept the key")
        page.page.fill("#key", "open-sesame")
        page.page.press("#key", "Enter")
        page.page.wait_for_selector("#ask-key", state="hidden")
        page.type("Good day.")
        page.until("d.items.some(i => i.role === 'assistant' && i.final)")
        assert page.read("sessionStorage.getItem('duologue.key')") == "open-sesame"
        assert "sesame" not in page.read("JSON.stringify(localStorage) + document.cookie")
        assert all("401" in said for said in page.complaints)
        assert page.strays == []
        page.page.close()


def test_a_full_server_is_asked_again(visit: Visiting) -> None:
    doors: list[WebSocketRoute] = []

    def full_at_first(socket: WebSocketRoute) -> None:
        doors.append(socket)
        if len(doors) == 1:
            socket.close(code=1013, reason="All places are taken.")
        else:
            socket.connect_to_server()

    page = visit(route=full_at_first)
    page.type("Is there room?")
    page.until("d.state.line === 'waiting' && d.state.trouble === 'full'")
    assert "Trying again in" in page.page.inner_text("#link")
    page.page.click("text=Try now")
    page.until("d.state.line === 'open' && d.state.trouble === null")
    page.until("d.items.some(i => i.role === 'assistant' && i.final)")
    assert len(doors) == 2
    page.is_well()


def test_a_restarted_server_is_given_the_conversation(visit: Visiting) -> None:
    doors: list[WebSocketRoute] = []
    sent: list[dict[str, Any]] = []

    def pass_on(socket: WebSocketRoute) -> None:
        doors.append(socket)
        server = socket.connect_to_server()

        def to_server(message: str | bytes) -> None:
            sent.append(json.loads(message))
            server.send(message)

        socket.on_message(to_server)

    page = visit(route=pass_on)
    page.type("Remember this.")
    page.until("d.items.some(i => i.role === 'assistant' && i.final && i.heard)")
    before = len(sent)
    doors[0].close(code=1012)
    page.until("d.counters.sessions === 2")
    page.type("What was it?")
    page.until("d.items.length === 4 && d.items[3].final")
    given = [event["item"] for event in sent[before:] if event["type"].endswith("item.create")]
    texts = page.read("d.items.map(i => i.text)")
    assert [item["content"][0]["text"] for item in given] == texts[:3]
    assert [item["content"][0]["type"] for item in given[:2]] == ["input_text", "output_text"]
    page.is_well()


def test_a_missing_model_is_told_until_it_speaks_again(visit: Visiting) -> None:
    doors: list[WebSocketRoute] = []

    def pass_on(socket: WebSocketRoute) -> None:
        doors.append(socket)
        socket.connect_to_server()

    page = visit(route=pass_on)
    page.type("Are you there?")
    page.until("d.items.some(i => i.role === 'assistant' && i.final && i.heard)")
    error = {"type": "server_error", "code": "engine_unavailable", "message": "Not now."}
    failed = {"id": "resp_0", "status": "failed", "output": [], "status_details": {"error": error}}
    doors[0].send(json.dumps({"type": "response.done", "response": failed}))
    page.until("d.state.trouble === 'absent'")
    page.type("And now?")
    page.until("d.state.trouble === null && d.items.filter(i => i.heard).length === 2")
    page.is_well()


SERVER = "/static/server.js"


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ({"/health": (200, {"status": "ok", "detail": "starting"})}, "full"),
        ({"/health": (200, {"status": "ok"}), "/v1/models": (401, {})}, "refused"),
        ({"/health": (200, {"status": "ok"}), "/v1/models": (404, {})}, "away"),
        ({"/health": (500, {})}, "away"),
    ],
)
def test_a_server_that_starts_is_asked_for_nothing_it_must_refuse(
    visit: Visiting, answers: dict[str, tuple[int, Any]], state: str
) -> None:
    page = visit()
    asked = page.page.evaluate(
        """async ([module, answers]) => {
          const {ask} = await import(module);
          const asked = [];
          window.fetch = async (url) => {
            const path = new URL(url).pathname;
            asked.push(path);
            const [status, body] = answers[path] ?? [200, {}];
            return new Response(JSON.stringify(body), {status});
          };
          return [(await ask(new URL("/", location), "key")).state, ...asked];
        }""",
        [SERVER, answers],
    )
    assert asked[0] == state
    assert ("/v1/models" in asked) is ("/v1/models" in answers)


# -- looks ----------------------------------------------------------------------------------


def test_everything_fits_at_every_width(visit: Visiting) -> None:
    page = visit(reduced_motion="reduce")
    page.type("No screen is as wide as this word: " + "wide" * 60)
    page.until("d.items.some(i => i.role === 'assistant' && i.final)")
    for width, height in [
        (320, 568),
        (360, 640),
        (390, 844),
        (768, 1024),
        (1080, 600),
        (1920, 1080),
    ]:
        page.page.set_viewport_size({"width": width, "height": height})
        page.until(f"innerWidth === {width} && document.documentElement.scrollWidth === {width}")
        for control in ("#talk", "#words", "#mute", "#hush", "#statement", ".send"):
            box = page.page.locator(control).bounding_box()
            assert box is not None, (control, width)
            assert box["x"] >= 0, (control, width)
            assert box["x"] + box["width"] <= width, (control, width)
            assert box["y"] + box["height"] <= height, (control, width)
    page.is_well()


def test_the_settings_open_on_a_phone_and_close_again(visit: Visiting) -> None:
    page = visit(viewport={"width": 390, "height": 844}, color_scheme="dark")
    assert not page.page.is_visible("#panel")
    page.page.click("#open-panel")
    assert page.page.is_visible("select[name=voice]")
    page.page.keyboard.press("Escape")
    page.page.wait_for_selector("#panel", state="hidden")
    page.is_well()


def test_the_newest_line_stays_in_view_until_somebody_scrolls_up(visit: Visiting) -> None:
    page = visit()
    at_the_end = "scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 2"
    page.page.evaluate(
        """() => {
          const list = document.querySelector("#lines");
          window.grow = () => {
            const line = document.createElement("li");
            line.style.height = "900px";
            list.append(line);
          };
          // Each time the list has grown, it grows again before the page hears of its scrolling.
          new ResizeObserver(() => list.children.length < 5 && setTimeout(window.grow))
            .observe(list);
        }"""
    )
    page.until(f"document.querySelectorAll('#lines li').length === 5 && {at_the_end}")

    page.page.locator("#scroller").hover()
    page.page.mouse.wheel(0, -400)
    page.until(f"!({at_the_end})")
    top = page.read("scroller.scrollTop")
    page.page.evaluate("window.grow()")
    page.until(f"document.querySelectorAll('#lines li').length === 6 && !({at_the_end})")
    assert page.read("scroller.scrollTop") <= top
    page.is_well()


# -- sound ----------------------------------------------------------------------------------

PLAYOUT = """
async ({rate, seconds, acts}) => {
  const context = new OfflineAudioContext(1, rate * seconds, rate);
  await context.audioWorklet.addModule("/static/playout-worklet.js");
  const options = {numberOfInputs: 0, outputChannelCount: [1]};
  const node = new AudioWorkletNode(context, "duologue-playout", options);
  const told = [];
  const last = acts.some(({type}) => type === "end") ? "played" : "flushed";
  let over;
  const answer = new Promise((resolve) => (over = resolve));
  node.port.onmessage = ({data}) => {
    told.push(data);
    if (data.type === last) over();
  };
  node.connect(context.destination);
  const tone = (from, to) => Int16Array.from(
    {length: (to - from) * 24},
    (_, k) => 16000 * Math.sin(2 * Math.PI * 200 * (k + from * 24) / 24000),
  );
  for (const {at, type, from, to} of acts) {
    context.suspend(at).then(async () => {
      if (type === "audio") {
        node.port.postMessage({type, id: "item", content: 0, pcm: tone(from, to)});
      } else {
        node.port.postMessage({type, id: "item", token: 1});
        if (type === "flush") await answer;
      }
      context.resume();
    });
  }
  const buffer = await context.startRendering();
  await answer;
  return {told, sound: Array.from(buffer.getChannelData(0))};
}
"""


def play(page: Visit, rate: int, seconds: int, *acts: dict[str, object]) -> tuple[Any, Any]:
    """What the playout worklet says and plays; `acts` happen at multiples of 128 frames."""
    for act in acts:
        act["at"] = round(float(str(act["at"])) * rate / 128) * 128 / rate
    answer = page.page.evaluate(PLAYOUT, {"rate": rate, "seconds": seconds, "acts": list(acts)})
    return answer["told"], np.array(answer["sound"])


def audible(sound: Any) -> tuple[int, int]:
    (loud,) = np.nonzero(np.abs(sound) > 1e-4)
    return int(loud[0]), int(loud[-1])


@pytest.mark.parametrize("rate", [24_000, 44_100, 48_000])
def test_an_interruption_is_silent_within_10_ms_and_counts_what_was_played(
    visit: Visiting, rate: int
) -> None:
    told, sound = play(
        visit(),
        rate,
        2,
        {"at": 0.0, "type": "audio", "from": 0, "to": 1500},
        {"at": 0.5, "type": "flush"},
    )
    first, last = audible(sound)
    assert last / rate - 0.5 <= 0.010
    assert np.abs(np.diff(sound)).max() < 0.05  # the tone itself moves by 0.026 a sample
    (answer,) = (message for message in told if message["type"] == "flushed")
    (item,) = answer["items"]
    assert (item["id"], item["content"]) == ("item", 0)
    assert item["playedMs"] == pytest.approx((last - first) * 1000 / rate, abs=4)


def test_a_late_network_makes_one_gap_without_a_click_and_loses_nothing(visit: Visiting) -> None:
    told, sound = play(
        visit(),
        48_000,
        2,
        {"at": 0.0, "type": "audio", "from": 0, "to": 200},
        {"at": 0.6, "type": "audio", "from": 200, "to": 400},
        {"at": 0.7, "type": "end"},
    )
    assert [m["underruns"] for m in told if m["type"] == "underrun"] == [1]
    assert [m["playedMs"] for m in told if m["type"] == "played"] == [400]
    assert np.abs(np.diff(sound)).max() < 0.05
    assert np.count_nonzero(np.abs(sound) > 1e-4) / 48 == pytest.approx(400, abs=12)
    levels = [m.get("level", 0) for m in told if m["type"] in ("position", "rest")]
    assert levels[levels.index(0) - 1] > 0.3  # heard, then at rest, and only then heard again
    assert 0 < levels.index(0) < len(levels) - 1
    assert [m["type"] for m in told].count("rest") >= 1


def test_the_end_of_an_answer_is_no_gap(visit: Visiting) -> None:
    told, sound = play(
        visit(),
        48_000,
        1,
        {"at": 0.0, "type": "audio", "from": 0, "to": 200},
        {"at": 0.5, "type": "end"},
    )
    assert [m["type"] for m in told if m["type"] in ("underrun", "played")] == ["played"]
    assert audible(sound)[1] / 48 == pytest.approx(200, abs=8)


CAPTURE = """
async ({rate, tones}) => {
  const context = new OfflineAudioContext(1, rate, rate);
  await context.audioWorklet.addModule("/static/capture-worklet.js");
  const node = new AudioWorkletNode(context, "duologue-capture", {outputChannelCount: [1]});
  const frames = [];
  let all;
  const heard = new Promise((resolve) => (all = resolve));
  node.port.onmessage = ({data}) => {
    frames.push(data);
    if (frames.length === 49) all();
  };
  node.connect(context.destination);
  for (const frequency of tones) {
    const oscillator = new OscillatorNode(context, {frequency});
    oscillator.connect(new GainNode(context, {gain: 0.25})).connect(node);
    oscillator.start();
  }
  await context.startRendering();
  await heard;
  return frames.slice(0, 49).map(({pcm, level}) => ({pcm: Array.from(pcm), level}));
}
"""


@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100, 48_000, 96_000])
def test_the_microphone_is_heard_at_24_khz_without_aliases(visit: Visiting, rate: int) -> None:
    high = [15_000, 18_500] if rate > 40_000 else []
    script = {"rate": rate, "tones": [1000, *high]}
    frames = visit().page.evaluate(CAPTURE, script)
    assert {len(frame["pcm"]) for frame in frames} == {480}
    heard = np.concatenate([frame["pcm"] for frame in frames])[4800:16800] / 32768
    spectrum = np.abs(np.fft.rfft(heard * np.hanning(len(heard)))) / (len(heard) / 4)
    bins = len(heard) // 24  # one kilohertz
    assert spectrum[bins] == pytest.approx(0.25, rel=0.02)
    rest = np.delete(spectrum, range(bins - 8, bins + 9))
    assert rest.max() < 0.25 * 10 ** (-75 / 20)
    assert frames[20]["level"] == pytest.approx(0.25 / 2**0.5, rel=0.02)


# -- arithmetic -----------------------------------------------------------------------------


def test_the_parts_of_a_wait_add_up_whatever_came_first(visit: Visiting) -> None:
    turns: list[dict[str, Any]] = [
        {"endedAt": 0, "transcriptAt": 300, "textAt": 400, "audioAt": 700},
        {"endedAt": 0, "transcriptAt": 900, "textAt": 400, "audioAt": 700},
        {"endedAt": 0, "transcriptAt": 300, "textAt": 680, "audioAt": 700},
        {"endedAt": 0, "transcriptAt": None, "textAt": 800, "audioAt": 700},
        {"endedAt": 100, "transcriptAt": 50, "textAt": 400, "audioAt": None},
        {"endedAt": 0, "transcriptAt": 300, "textAt": 400, "audioAt": None, "cancelledAt": 450},
        {"endedAt": 0, "transcriptAt": None, "textAt": None, "audioAt": None, "cancelledAt": 450},
        {"endedAt": 0, "transcriptAt": 300, "textAt": 400, "audioAt": 700, "cancelledAt": 750},
        {"endedAt": 0, "transcriptAt": 300, "textAt": None, "audioAt": None},
        {"endedAt": None, "transcriptAt": None, "textAt": 10, "audioAt": 20},
    ]
    figures = visit().page.evaluate(
        "async (turns) => (await import('/static/latency.js')) && turns.map("
        "(await import('/static/latency.js')).figuresOf)",
        [{"cancelledAt": None, "typed": False} | turn for turn in turns],
    )
    shown = [turn and {part: ms for part, ms in turn.items() if ms is not None} for turn in figures]
    assert shown == [
        {"heard": 300, "thought": 100, "spoke": 300, "total": 700},
        {"heard": 400, "thought": 0, "spoke": 300, "total": 700},
        {"heard": 300, "answered": 400, "total": 700},
        {"heard": 700, "answered": 0, "total": 700},
        {"heard": 0, "thought": 300, "total": 300},
        {"heard": 300, "cancelled": 150, "total": 450},
        {"cancelled": 450, "total": 450},
        {"heard": 300, "thought": 100, "spoke": 300, "total": 700},
        None,
        None,
    ]


def test_the_end_of_speech_is_dated_by_its_sound_not_by_the_servers_patience(
    visit: Visiting,
) -> None:
    ends = visit().page.evaluate(
        """async () => {
          const {SpeechClock} = await import("/static/latency.js");
          const clock = new SpeechClock();
          for (let k = 1; k <= 100; k += 1) clock.sent(k <= 60 ? 0.1 : 0.001, 5000 + k * 20);
          return [2000, 1000, null].map((place) => clock.endOfSpeech(place, 7100));
        }"""
    )
    assert ends == [5000 + 60 * 20, 5000 + 1000, 5000 + 60 * 20]


def test_only_the_words_that_the_server_confirms_count_as_heard(visit: Visiting) -> None:
    heard = visit().page.evaluate(
        """async () => {
          const {Conversation} = await import("/static/conversation.js");
          const quiet = {added() {}, changed() {}, removed() {}};
          const conversation = new Conversation(quiet);
          const item = {id: "a", type: "message", role: "assistant"};
          const about = {item_id: "a", response_id: "r", content_index: 0};
          conversation.receive({type: "response.output_item.added", response_id: "r", item}, 0);
          const say = "response.output_audio_transcript.delta";
          conversation.receive({type: say, delta: "One two  three four", ...about}, 0);
          conversation.audioArrived("a", "r", 2000);
          conversation.cut("a", 900);
          const guessed = conversation.history();
          const late = conversation.audioArrived("a", "r", 20);
          const content = [{type: "output_audio", transcript: "One two three"}];
          const told = {...item, content};
          conversation.receive({type: "conversation.item.retrieved", item: told}, 0);
          return {late, guessed, known: conversation.history()};
        }"""
    )
    assert heard["late"] is False
    assert heard["guessed"][0]["content"] == [{"type": "output_text", "text": "One two"}]
    assert heard["known"][0]["content"] == [{"type": "output_text", "text": "One two  three"}]
