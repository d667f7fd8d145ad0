"""Barge-in as Chromium hears it: its microphone and what it plays, on one clock of its own.

A headless Chromium calls with a recorded voice for a microphone. Both its microphone's track and
the server's, decoded and played out, go through one WebAudio graph, where the peak of every
millisecond is noted. The loudspeaker itself is not in it.
"""

import functools
import shutil
import tempfile
import wave
from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread
import numpy as np
import numpy.typing as npt

from duologue.codecs.resample import Resampler
from load_tests.loudspeaker import RATE, SILENT_BELOW
from load_tests.recordings import RATE as RECORDED_RATE, Recording, Samples
from load_tests.report import Json, spread
from load_tests.server import ServerError

Peaks = npt.NDArray[np.int64]

GAPS = (1.1, 1.5, 1.3, 1.7)
"""Seconds of silence behind what is said, in turn: the answer begins in it, and is then cut."""
QUIET_MS = 300
"""Silence before somebody is taken to begin to speak, and after sound for it to have stopped."""
HEARD_WITHIN_MS = 60
"""What was heard so shortly before an interruption is what is interrupted."""
STOPPED_WITHIN_MS = 1_000
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
)
CALL = """
async () => {
  const context = new AudioContext({ sampleRate: 48000 });
  const code = `registerProcessor("peaks", class extends AudioWorkletProcessor {
    constructor() { super(); this.peaks = []; this.now = [0, 0]; this.count = 0; }
    process(inputs) {
      for (let at = 0; at < 128; at++) {
        for (const side of [0, 1]) {
          const samples = inputs[side][0];
          if (samples) this.now[side] = Math.max(this.now[side], Math.abs(samples[at]));
        }
        if (++this.count === 48) {
          this.peaks.push(...this.now); this.now = [0, 0]; this.count = 0;
        }
      }
      if (this.peaks.length > 500) { this.port.postMessage(this.peaks); this.peaks = []; }
      return true;
    }
  });`;
  const script = new Blob([code], { type: "text/javascript" });
  await context.audioWorklet.addModule(URL.createObjectURL(script));
  const ear = new AudioWorkletNode(context, "peaks", { numberOfInputs: 2, numberOfOutputs: 1 });
  const call = (window.call = { peaks: [], context, ear });
  ear.port.onmessage = (message) => call.peaks.push(...message.data);
  ear.connect(context.destination);
  const audio = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  const microphone = await navigator.mediaDevices.getUserMedia({ audio });
  context.createMediaStreamSource(microphone).connect(ear, 0, 0);
  const connection = (call.connection = new RTCPeerConnection());
  for (const track of microphone.getTracks()) connection.addTrack(track, microphone);
  connection.createDataChannel("oai-events");
  connection.ontrack = (event) => {
    call.loudspeaker = new Audio();
    call.loudspeaker.srcObject = event.streams[0];
    call.loudspeaker.muted = true;
    call.loudspeaker.play();
    context.createMediaStreamSource(event.streams[0]).connect(ear, 0, 1);
  };
  await connection.setLocalDescription();
  const response = await fetch("/v1/realtime/calls", {
    method: "POST",
    headers: { "Content-Type": "application/sdp" },
    body: connection.localDescription.sdp,
  });
  if (response.status !== 201) return await response.text();
  call.location = response.headers.get("Location");
  await connection.setRemoteDescription({ type: "answer", sdp: await response.text() });
  await context.resume();
  return "";
}
"""
HANG_UP = "() => fetch(window.call.location + '/hangup', { method: 'POST' })"
PEAKS = "() => window.call.peaks.map((peak) => Math.round(peak * 32768))"


def stops(said: Peaks, heard: Peaks) -> list[int]:
    """Milliseconds from the beginning of each interruption to the last sound of what it cut.

    Both are peaks of every millisecond (0 to 32768). Nothing is counted where nothing was heard
    when it began, and where what was heard did not stop.
    """
    loud, sounding = np.flatnonzero(said >= SILENT_BELOW), np.flatnonzero(heard >= SILENT_BELOW)
    found: list[int] = []
    for index, begin in enumerate(loud):
        if index and begin - loud[index - 1] <= QUIET_MS:
            continue
        before = sounding[(sounding < begin) & (sounding >= begin - HEARD_WITHIN_MS)]
        if not len(before):
            continue
        last = int(before[-1])
        for moment in sounding[sounding > last]:
            if moment - last > QUIET_MS:
                break
            last = int(moment)
        if last - begin <= STOPPED_WITHIN_MS and last + QUIET_MS < len(heard):
            found.append(max(0, last - int(begin)))
    return found


def microphone_of(recordings: Sequence[Recording]) -> Samples:
    """What is said, each from its first voiced sample to its last, at 48 kHz."""
    parts: list[Samples] = [np.zeros(2 * RATE, np.int16)]
    for number, recording in enumerate(recordings):
        begin, end = recording.voiced
        resampler = Resampler(RECORDED_RATE, RATE, np.int16)
        voiced = recording.samples[begin : end + 1]
        parts += [resampler.push(voiced), resampler.flush()]
        parts.append(np.zeros(round(GAPS[number % len(GAPS)] * RATE), np.int16))
    return np.concatenate(parts)


def listen(url: str, microphone: Path, seconds: float) -> tuple[Peaks, Peaks]:
    """Call for so long: peaks of what was said and of what was heard. Raises ServerError."""
    try:
        # It is among what the tests need, and no other load test does.
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise ServerError("Playwright is not installed") from None

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if chromium is None:
        raise ServerError("Chromium is not installed")
    capture = f"--use-file-for-fake-audio-capture={microphone}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS, capture])
        try:
            page = browser.new_context(permissions=["microphone"], bypass_csp=True).new_page()
            page.goto(url)
            refusal = page.evaluate(CALL)
            if refusal:
                raise ServerError(f"refused: {refusal}")
            page.wait_for_timeout(1000 * seconds)
            peaks = np.array(page.evaluate(PEAKS), np.int64)
            page.evaluate(HANG_UP)
        finally:
            browser.close()
    both = peaks[: len(peaks) // 2 * 2].reshape(-1, 2)
    return both[:, 0], both[:, 1]


async def run_chromium(
    url: str, recordings: Sequence[Recording], seconds: float
) -> tuple[dict[str, Json], list[str]]:
    """``barge_in_stop_ms``, of all interruptions within so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "microphone.wav"
        samples = microphone_of(recordings)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(samples.astype("<i2").tobytes())
        call = functools.partial(listen, url, path, seconds)
        said, heard = await anyio.to_thread.run_sync(call)
    found = stops(said, heard)
    figures: dict[str, Json] = {
        "interruptions": len(found),
        "barge_in_stop_ms": spread([float(ms) for ms in found]),
    }
    return figures, [] if found else ["nothing was interrupted"]
