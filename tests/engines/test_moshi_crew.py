"""A small Moshi with random weights on two ranks, against the same on one; and ranks that end."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

import torch
import torch.distributed as dist

from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.duplex_moshi import load_moshi
from duologue.engines.lockstep import Lockstep, Resting
from duologue.engines.moshi_crew import CrewLost, FollowerCrew, FollowerProcess, end_worker
from duologue.engines.moshi_impl import SavedSlot
from duologue.engines.moshi_options import MoshiOptions
from duologue.engines.moshi_orders import (
    ClearSlot,
    Follow,
    Forget,
    KeepSlot,
    Meet,
    Order,
    RestoreSlot,
)
from duologue.engines.rank_group import open_meeting
from duologue.models.moshi.moshi_config import GREEDY, SamplingChoice
from tests.engines.follow_order import small_follow
from tests.patience import PATIENCE_S
from tests.random_moshi import make_random_moshi

# Processes are started, each of which imports torch.
pytestmark = pytest.mark.timeout(300)

SLOTS = 3
WINDOW = 8
PICKY = SamplingChoice(seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a short window."""
    made = tmp_path_factory.mktemp("shared-moshi")
    make_random_moshi(made)
    path = made / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"context": WINDOW}))
    return made


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        yield
    torch.set_num_threads(threads)


@dataclass
class Pair:
    """The same model on one rank and on two, and what both did since :meth:`begin`."""

    models: tuple[Any, Any]
    losses: list[str]
    engines: list[Lockstep[SavedSlot]] = field(default_factory=list)
    rests: list[Resting[SavedSlot]] = field(default_factory=list)

    def begin(self) -> None:
        self.engines = [Lockstep(model.stepper) for model in self.models]

    def end(self) -> None:
        for engine in self.engines:
            for slot in list(engine._seats):
                engine.leave(slot)

    def step(self, sound: dict[int, Any]) -> tuple[Any, Any]:
        first, second = (engine.step(sound) for engine in self.engines)
        return first, second

    def same_step(self, sound: dict[int, Any]) -> dict[int, int | None]:
        """Both make a step; what both said."""
        first, second = self.step(sound)
        columns = [model.stepper.state.language.columns for model in self.models]
        for slot in sound:
            assert first[slot].text == second[slot].text
            assert (columns[0][slot] == columns[1][slot]).all()
            assert np.allclose(first[slot].pcm, second[slot].pcm, atol=1e-5)
        return {slot: first[slot].text for slot in sound}


ON_TWO_GPUS = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    ],
)


@pytest.fixture(scope="module", params=["cpu", ON_TWO_GPUS])
def loaded(request: pytest.FixtureRequest, folder: Path, one_thread: None) -> Iterator[Pair]:
    losses: list[str] = []
    options = MoshiOptions(
        folder=str(folder),
        name="m",
        device=request.param,
        dtype="float32",
        limits=DuplexLimits(slots=SLOTS),
    )
    alone = load_moshi(options)
    shared = load_moshi(
        MoshiOptions(**{**_fields(options), "tensor_parallel": 2}), lost=losses.append
    )
    yield Pair((alone, shared), losses)
    crew = shared.stepper._crew
    crew.close()
    dist.destroy_process_group()
    assert losses == []
    assert all(follower._process.returncode == 0 for follower in crew.followers)


def _fields(options: MoshiOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__struct_fields__}


@pytest.fixture
def pair(loaded: Pair) -> Iterator[Pair]:
    loaded.begin()
    yield loaded
    loaded.end()


def speech(name: str, frames: int) -> list[Any]:
    rng = np.random.default_rng(sum(name.encode()))
    return list((0.3 * rng.standard_normal((frames, 1920))).astype(np.float32))


def test_two_ranks_say_what_one_says_for_more_than_two_windows(pair: Pair) -> None:
    logits: list[list[Any]] = [[], []]
    hooks = [
        model._network.language.text_linear.register_forward_hook(
            lambda module, args, output, seen=seen: seen.append(output[0].clone())
        )
        for model, seen in zip(pair.models, logits, strict=True)
    ]
    for engine in pair.engines:
        engine.seat(0, GREEDY)
    said = [pair.same_step({0: frame})[0] for frame in speech("long", 2 * WINDOW + 4)]
    for hook in hooks:
        hook.remove()
    alone, shared = (torch.stack(seen) for seen in logits)
    assert (alone - shared).abs().max() < 1e-4
    assert alone.std() > 0.1
    assert len(set(said)) > 4


def test_each_rank_holds_half_of_the_heads(pair: Pair) -> None:
    alone, shared = (model.stepper.state.language.temporal for model in pair.models)
    assert shared.pools[0].keys.shape[1] * 2 == alone.pools[0].keys.shape[1]
    weights = [
        model._network.language.transformer.layers[0].self_attn.in_proj.weight
        for model in pair.models
    ]
    assert weights[1].nbytes * 2 == weights[0].nbytes


def test_sessions_come_go_rest_and_fork_on_two_ranks_as_on_one(pair: Pair) -> None:
    sounds = {name: iter(speech(name, 40)) for name in "abcd"}
    for engine in pair.engines:
        engine.seat(0, PICKY)
        engine.seat(2, GREEDY)
    for _ in range(WINDOW):
        pair.same_step({0: next(sounds["a"]), 2: next(sounds["b"])})
    for engine in pair.engines:
        engine.fork(0, 1)
    for _ in range(3):
        frame = next(sounds["a"])
        said = pair.same_step({0: frame, 1: frame})
        assert said[0] == said[1]
    rests = [engine.rest(0) for engine in pair.engines]
    for engine in pair.engines:
        engine.leave(2)
        engine.seat(0, GREEDY)
        engine.reset(1)
    for _ in range(3):
        pair.same_step({0: next(sounds["c"]), 1: next(sounds["d"])})
    for engine, rest in zip(pair.engines, rests, strict=True):
        engine.wake(2, rest)
    del rests
    for _ in range(WINDOW):
        frames = zip(range(SLOTS), (next(sounds[name]) for name in "cda"), strict=True)
        pair.same_step(dict(frames))


def test_a_session_that_rested_goes_on_where_it_was(pair: Pair) -> None:
    """Not as the other engine does, but as it would have itself."""
    sound, engine = speech("rests", 12), pair.engines[1]
    engine.seat(0, GREEDY)
    said = [engine.step({0: frame})[0].text for frame in sound]
    engine.leave(0)
    engine.seat(0, GREEDY)
    again = [engine.step({0: frame})[0].text for frame in sound[:6]]
    rest = engine.rest(0)
    engine.wake(1, rest)
    again += [engine.step({1: frame})[1].text for frame in sound[6:]]
    assert again == said


# -- processes ------------------------------------------------------------------------------


def follow(folder: Path, rank: int = 1) -> Follow:
    return small_follow(str(folder), rank=rank, slots=SLOTS, pages=SLOTS * 4)


def test_a_rank_that_is_lost_is_told_of(folder: Path) -> None:
    told = threading.Event()
    losses: list[str] = []

    def lost(reason: str) -> None:
        losses.append(reason)
        told.set()

    crew = FollowerCrew([follow(folder)], lost)
    crew.wait_ready()
    meeting = open_meeting()
    crew.meet(meeting.port, graphs=False)
    os.kill(crew.followers[0].pid, signal.SIGKILL)
    assert told.wait(PATIENCE_S)
    assert losses == ["rank 1 has ended with status -9"]
    with pytest.raises(CrewLost, match="rank 1 is gone"):
        crew.clear(0)
    crew.close()


def test_a_rank_that_can_not_load_says_why(tmp_path: Path) -> None:
    crew = FollowerCrew([follow(tmp_path)], lambda reason: None)
    with pytest.raises(CrewLost, match="rank 1 failed: UnsupportedCheckpoint: .* is missing"):
        crew.wait_ready()
    crew.close()


_PARENT = """
import os, signal, sys
from pathlib import Path
from duologue.engines.moshi_crew import FollowerCrew
from duologue.engines.moshi_orders import Follow
import msgspec
crew = FollowerCrew([msgspec.json.decode(sys.argv[1], type=Follow)], print)
crew.wait_ready()
crew.meet(int(sys.argv[2]), False)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_rank_outlives_the_first_though_it_waits_for_it(folder: Path) -> None:
    """The follower has come to the meeting, where nobody else will come."""
    import msgspec

    meeting = open_meeting()
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, msgspec.json.encode(follow(folder)), str(meeting.port)],
        stderr=subprocess.PIPE,
    )
    _, errors = parent.communicate(timeout=PATIENCE_S)  # until nobody holds the pipe any more
    assert parent.returncode == -signal.SIGKILL, errors


def test_a_worker_without_one_of_its_ranks_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    end_worker("rank 3 is gone")
    assert statuses == [70]
    assert "rank 3 is gone; this worker can't go on" in caplog.text


# -- orders ---------------------------------------------------------------------------------


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[Order]:
    told: list[Order] = []
    monkeypatch.setattr(FollowerProcess, "__init__", lambda self, follow: None)
    monkeypatch.setattr(FollowerProcess, "tell", lambda self, order: told.append(order))
    return told


def test_what_nobody_can_ask_for_any_more_is_forgotten(orders: list[Order], tmp_path: Path) -> None:
    crew = FollowerCrew([follow(tmp_path)], lambda reason: None)
    first, second = crew.keep(0), crew.keep(1)
    crew.restore(2, second, [5, 6])
    del first
    crew.clear(0)
    crew.clear(1)
    assert orders == [
        KeepSlot(0, 1),
        KeepSlot(1, 2),
        RestoreSlot(2, 2, (5, 6)),
        Forget((1,)),
        ClearSlot(0),
        ClearSlot(1),
    ]
    assert not isinstance(orders[0], Meet)


@pytest.mark.parametrize(
    ("ranks", "device", "match"),
    [
        (3, "cpu", "moshi_tensor_parallel: 4 attention heads do not split into 3 equal parts"),
        (2, "cuda:1", "device cuda:1: torch sees no CUDA device"),
    ],
)
def test_ranks_that_can_not_be_are_told_before_anything_is_started(
    folder: Path, ranks: int, device: str, match: str
) -> None:
    if torch.cuda.is_available() and device != "cpu":
        match = "moshi_device: cuda:1 is no 2 devices"
    options = MoshiOptions(folder=str(folder), name="m", device=device, tensor_parallel=ranks)
    with pytest.raises((ValueError, RuntimeError), match=match):
        load_moshi(options)


def test_more_ranks_than_devices_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    options = MoshiOptions(folder=str(folder), name="m", tensor_parallel=4)
    with pytest.raises(RuntimeError, match="moshi_tensor_parallel is 4, but torch sees 2 devices"):
        load_moshi(options)
