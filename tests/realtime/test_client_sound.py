"""Devices that are not there are told of in words."""

import sys

import pytest

from duologue.realtime.client_sound import Loudspeaker, Microphone, Nowhere, SoundError


@pytest.mark.parametrize("device", [Microphone, Loudspeaker])
def test_without_portaudio_the_way_to_it_is_told(
    device: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(SoundError, match=r"pip install duologue\[talk\]"):
        device()


class Stream:
    """A device's stream that can't be opened."""

    def __init__(self, **options: object) -> None:
        raise RuntimeError("Error opening RawOutputStream: no device")


def test_a_loudspeaker_that_cannot_be_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("sounddevice")
    module.RawOutputStream = Stream  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    with pytest.raises(SoundError, match="no device"):
        Loudspeaker()


class Playing:
    """A device that plays when it is told to."""

    def __init__(self, **options: object) -> None:
        self.callback = options["callback"]

    def start(self) -> None:
        Playing.last = self

    def abort(self) -> None: ...

    def close(self) -> None: ...

    last: "Playing"


def test_a_loudspeaker_plays_what_was_written_and_silence_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = type(sys)("sounddevice")
    module.RawOutputStream = Playing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    loudspeaker = Loudspeaker()
    loudspeaker.write(b"\1" * 960)
    heard = bytearray(1200)
    Playing.last.callback(heard, 600, None, None)  # type: ignore[operator]
    assert heard == b"\1" * 960 + bytes(240)
    loudspeaker.write(b"\2" * 960)
    loudspeaker.flush()
    Playing.last.callback(heard, 600, None, None)  # type: ignore[operator]
    assert not any(heard)
    loudspeaker.close()


def test_a_slow_device_does_not_fall_behind_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("sounddevice")
    module.RawOutputStream = Playing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    loudspeaker = Loudspeaker()
    for value in range(100):
        loudspeaker.write(bytes([value]) * 960)
    heard = bytearray(960)
    Playing.last.callback(heard, 480, None, None)  # type: ignore[operator]
    assert heard[0] >= 88


def test_nowhere_takes_everything() -> None:
    Nowhere().write(b"\1")
    Nowhere().flush()
