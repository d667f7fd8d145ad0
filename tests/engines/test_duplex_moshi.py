"""A small Moshi with random weights, from a folder, behind the sockets."""

import io
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import numpy as np
import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

import torch

from duologue.codecs.media import AudioChunk, MediaTime
from duologue.codecs.pcm import bytes_from_float, float_from_bytes
from duologue.codecs.wav import write_wav
from duologue.engines.duplex import (
    DuplexChoice,
    DuplexParked,
    ForceText,
    FrameSpoken,
    ParkDuplex,
    TextForced,
)
from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.duplex_model import DuplexInvalid
from duologue.engines.duplex_moshi import MoshiModel, load_moshi
from duologue.engines.duplex_stream import DuplexRefused
from duologue.engines.lockstep import Lockstep
from duologue.engines.moshi_options import MoshiOptions
from duologue.models.moshi.kyutai_layout import UnsupportedCheckpoint
from tests.patience import PATIENCE_S
from tests.random_moshi import make_random_moshi
from tests.talker import PERIOD_S, Setting, Talker, setting

pytestmark = pytest.mark.anyio

SLOTS = 5
LIMITS = DuplexLimits(slots=SLOTS, slow=True, warm_ticks=0)
GREEDY = DuplexChoice(text_temperature=0, audio_temperature=0, seed=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = tmp_path_factory.mktemp("moshi")
    make_random_moshi(made)
    yield made
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(folder: Path) -> MoshiModel:
    return load_moshi(MoshiOptions(folder=str(folder), name="tiny", device="cpu", limits=LIMITS))


def speech(seed: int, frames: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    noise = 0.3 * rng.standard_normal((frames, 1920))
    return [bytes_from_float(one.astype(np.float32)) for one in noise]


def alone(model: MoshiModel, sound: list[bytes]) -> list[tuple[bytes, str]]:
    """What a session says that has the model to itself."""
    lockstep = Lockstep(model.stepper)
    lockstep.seat(0, model.choice(GREEDY))
    text = model.text()
    said = []
    for pcm in sound:
        spoken = lockstep.step({0: float_from_bytes(pcm)})[0]
        piece = "" if spoken.text is None else text.push(spoken.text)
        said.append((bytes_from_float(spoken.pcm), piece))
    return said


async def talk_together(here: Setting, talkers: dict[Talker, bytes]) -> dict[Talker, FrameSpoken]:
    """One tick of all of them."""
    here.clock.now += PERIOD_S
    for talker, pcm in talkers.items():
        talker.hear(pcm)
    return {talker: await talker.expect(FrameSpoken) for talker in talkers}


async def test_eight_sessions_that_come_and_go_say_what_each_says_alone(model: MoshiModel) -> None:
    rng = random.Random(7)
    plans = {name: (rng.randrange(0, 14), rng.randrange(4, 9)) for name in "abcdefgh"}
    sound = {name: speech(ord(name), length) for name, (_, length) in plans.items()}
    said: dict[str, list[tuple[bytes, str]]] = {name: [] for name in plans}
    together = []
    async with setting(model, LIMITS) as here:
        talkers: dict[str, Talker] = {}
        waiting = sorted(plans, key=plans.__getitem__)
        for tick in range(60):
            while waiting and plans[waiting[0]][0] <= tick and len(talkers) < SLOTS:
                name = waiting.pop(0)
                talkers[name] = await here.open(name, choice=GREEDY)
            heard = {talker: sound[name][len(said[name])] for name, talker in talkers.items()}
            together.append(len(heard))
            spoken = await talk_together(here, heard)
            for name, talker in list(talkers.items()):
                said[name].append((spoken[talker].pcm, spoken[talker].text))
                if len(said[name]) == len(sound[name]):
                    await talkers.pop(name).stream.aclose()
                    await _left(here, len(talkers))
            if not waiting and not talkers:
                break
    assert max(together) >= 3
    for name in plans:
        assert said[name] == alone(model, sound[name]), name


async def _left(here: Setting, sessions: int) -> None:
    with anyio.fail_after(PATIENCE_S):
        while len(here.backend.scheduler) > sessions:
            await anyio.lowlevel.checkpoint()


async def test_a_fork_says_what_its_parent_says_until_they_hear_otherwise(
    model: MoshiModel,
) -> None:
    async with setting(model, LIMITS) as here:
        parent = await here.open("a", choice=GREEDY)
        for pcm in speech(1, 4):
            await parent.talk(pcm)
        child = await here.fork(parent, "b")
        for pcm in speech(2, 4):
            spoken = await talk_together(here, {parent: pcm, child: pcm})
            assert spoken[parent].pcm == spoken[child].pcm
        differ = []
        for ours, theirs in zip(speech(3, 6), speech(4, 6), strict=True):
            spoken = await talk_together(here, {parent: ours, child: theirs})
            differ.append(spoken[parent].pcm != spoken[child].pcm)
        assert any(differ)


async def test_a_session_that_was_parked_says_what_it_would_have_said(model: MoshiModel) -> None:
    sound = speech(5, 8)
    async with setting(model, LIMITS) as here:
        talker = await here.open("a", choice=GREEDY)
        said = []
        for index, pcm in enumerate(sound):
            if index in (3, 6):
                talker.stream.send(ParkDuplex(session=""))
                await talker.expect(DuplexParked)
                other = await here.open(f"b{index}", choice=GREEDY)
                await other.talk(sound[0])
                await other.stream.aclose()
                await _left(here, 0)
                here.clock.now += 3
                talker.hear(pcm)
                assert (await talker.stream.receive()).tick == index  # type: ignore[union-attr]
                spoken = await talker.expect(FrameSpoken)
            else:
                spoken = await talker.talk(pcm)
            said.append((spoken.pcm, spoken.text))
    assert said == alone(model, sound)


async def test_a_comment_is_what_the_model_reads_out(model: MoshiModel) -> None:
    async with setting(model, LIMITS) as here:
        talker = await here.open("a", choice=GREEDY)
        comment = ForceText(session="", reference="r", kind="commentary", text="the lazy dog")
        talker.stream.send(comment)
        said = ""
        while True:
            talker.clock.now += PERIOD_S
            talker.hear()
            output = await talker.stream.receive()
            if isinstance(output, FrameSpoken):
                said += output.text
                output = None
            if isinstance(output, TextForced):
                break
            assert talker.sequence < 60
        assert "the lazy dog".replace(" ", "") in said.replace(" ", "")


async def test_another_choice_than_greedy_is_seeded(model: MoshiModel) -> None:
    async with setting(model, LIMITS) as here:
        said = []
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            talker = await here.open(name, choice=DuplexChoice(seed=seed))
            said.append([(await talker.talk(pcm)).pcm for pcm in speech(1, 5)])
            await talker.stream.aclose()
            await _left(here, 0)
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize("choice", [DuplexChoice(text_temperature=-1), DuplexChoice(seed=-1)])
async def test_a_choice_that_makes_no_sense_is_refused(
    model: MoshiModel, choice: DuplexChoice
) -> None:
    with pytest.raises(DuplexInvalid):
        model.choice(choice)
    async with setting(model, LIMITS) as here:
        with pytest.raises(DuplexRefused):
            await here.open("a", choice=choice)


@pytest.fixture(scope="module")
def persona(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> MoshiModel:
    """As PersonaPlex: it has voices and is told a role."""
    made = tmp_path_factory.mktemp("personaplex")
    shutil.copytree(folder, made, dirs_exist_ok=True)
    with tarfile.open(made / "voices.tgz", "w:gz") as tar:
        for seed, name in enumerate(("NATF2", "NATM1")):
            noise = np.random.default_rng(seed).standard_normal(3 * 1920) * 3000
            wav = write_wav(AudioChunk(noise.astype(np.int16), 24_000, MediaTime(0, 24_000)))
            member = tarfile.TarInfo(f"voices/{name}.wav")
            member.size = len(wav)
            tar.addfile(member, io.BytesIO(wav))
    return load_moshi(MoshiOptions(folder=str(made), name="p", device="cpu", limits=LIMITS))


async def test_voice_and_role_are_told_before_a_session_begins(persona: MoshiModel) -> None:
    assert persona.spec.voices == ("NATF2", "NATM1")
    assert persona.spec.default_voice == "NATF2"
    assert persona.spec.duplex is not None and persona.spec.duplex.instructions
    begin = {"choice": DuplexChoice(seed=1)}
    async with setting(persona, LIMITS) as here:
        heard = {}
        for name, voice, role in (
            ("a", "NATF2", "be kind"),
            ("b", "NATF2", "be kind"),
            ("c", "NATM1", "be kind"),
            ("d", "NATF2", "be bold"),
        ):
            talker = await here.open(name, role, voice=voice, **begin)
            heard[name] = [(await talker.talk(pcm)).pcm for pcm in speech(1, 8)]
            await talker.stream.aclose()
            await _left(here, 0)
        assert heard["a"] == heard["b"]
        assert len({tuple(one) for one in heard.values()}) == 3
        with pytest.raises(DuplexRefused, match="no voice"):
            await here.open("e", voice="nobody")


def test_a_device_that_is_not_there_is_told(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(RuntimeError, match="no CUDA device"):
        load_moshi(MoshiOptions(folder=str(folder), name="tiny", device="cuda:0"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "pieces.model").unlink(), "pieces.model is missing"),
        (lambda folder: (folder / "lm.safetensors").unlink(), "lm.safetensors is missing"),
    ],
)
def test_a_folder_that_lacks_something_is_told(
    folder: Path, tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    spoil(broken)
    with pytest.raises(UnsupportedCheckpoint, match=words):
        load_moshi(MoshiOptions(folder=str(broken), name="tiny"))
