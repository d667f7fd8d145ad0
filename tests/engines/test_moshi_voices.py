"""Voices beside a checkpoint."""

import io
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")
pytest.importorskip("safetensors", reason="safetensors comes with duologue[moshi]")

import torch

from duologue.codecs.media import AudioChunk, MediaTime
from duologue.codecs.wav import write_wav
from duologue.engines import moshi_voices
from duologue.engines.moshi_voices import Voice, find_voices, voice_name
from duologue.models.moshi.kyutai_layout import UnsupportedCheckpoint
from duologue.models.moshi.voice_prompts import NoVoice

ENGINES = Path(__file__).parents[2] / "docs" / "engines.md"
WAV = write_wav(AudioChunk(np.zeros(1920, np.int16), 24_000, MediaTime(0, 24_000)))
CODES = [[1, 2], [3, 4]]
MODEL: Any = object()


@pytest.fixture(autouse=True)
def decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that says so is a voice; what is in a real one is the network's business."""

    def voice_codes(content: bytes, model: Any) -> list[list[int]]:
        if content != b"a voice":
            raise NoVoice("it has no tensor embeddings")
        return CODES

    monkeypatch.setattr(moshi_voices, "voice_codes", voice_codes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "voices").mkdir()
    return tmp_path


def test_recordings_and_converted_voices_of_the_folder_are_found(folder: Path) -> None:
    (folder / "voices" / "ann.wav").write_bytes(WAV)
    (folder / "voices" / "bob.safetensors").write_bytes(b"a voice")
    (folder / "voices" / "readme.txt").write_text("about them")
    assert find_voices(folder, None, "", MODEL) == {
        "ann": Voice(wav=WAV),
        "bob": Voice(codes=((1, 2), (3, 4))),
    }
    assert find_voices(folder / "voices", None, "ann", MODEL) == {}


def test_a_voice_can_be_a_file_anywhere(folder: Path) -> None:
    path = folder / "mine.safetensors"
    path.write_bytes(b"a voice")
    assert list(find_voices(folder, None, str(path), MODEL)) == ["mine"]
    assert voice_name(str(path)) == "mine"
    assert voice_name("NATF2") == "NATF2"


@pytest.mark.parametrize("named", ["NATF2.pt", "/voices/NATF2.pt"])
def test_a_pickled_voice_is_refused_with_what_to_do(named: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"voice: .*NATF2.pt is a pickle.*convert it"):
        voice_name(named)


def test_pickled_voices_of_an_archive_are_left_out_and_told_of(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = folder / "voices.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in (("a.wav", WAV), ("a.pt", b"\x80"), ("b.pt", b"\x80")):
            member = tarfile.TarInfo(f"voices/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    assert list(find_voices(folder, archive, "", MODEL)) == ["a"]
    assert "b.pt is left out: it is a pickle" in caplog.text
    assert "a.pt" not in caplog.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.wav", "No such file"),
        ("none.safetensors", "No such file"),
        ("other.safetensors", "it has no tensor embeddings"),
    ],
)
def test_a_file_that_is_no_voice_is_told(folder: Path, name: str, words: str) -> None:
    (folder / "other.safetensors").write_bytes(b"something else")
    with pytest.raises(UnsupportedCheckpoint, match=f"voice: .*{name}: {words}"):
        find_voices(folder, None, str(folder / name), MODEL)


def test_the_conversion_that_the_page_tells_of_converts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    embeddings = torch.randn(5, 1, 1, 8).bfloat16()
    # The cache of a stream is a view of something larger; safetensors takes no such thing as it is.
    cache = torch.arange(48).view(2, 8, 3)[:1].transpose(1, 2)
    torch.save({"embeddings": embeddings, "cache": cache}, folder / "NATF2.pt")
    (code,) = re.findall(r"```python\n(import torch\n.*?)```", ENGINES.read_text(), re.S)
    monkeypatch.chdir(folder)
    exec(code, {})
    converted = load_file(folder / "NATF2.safetensors")
    assert torch.equal(converted["embeddings"], embeddings)
    assert torch.equal(converted["cache"], cache)
