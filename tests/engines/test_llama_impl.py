import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from duologue.engines.call_schema import call_schema
from duologue.engines.llama_impl import Completion, LlamaError, LlamaServer, Sampling
from duologue.models.weights import locate

GREEDY = Sampling(temperature=0.0)
HELLO = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": "What is the capital of France?"},
]


def listening() -> set[tuple[str, int]]:
    connections = psutil.Process().net_connections("inet")
    return {tuple(one.laddr) for one in connections if one.status == psutil.CONN_LISTEN}


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    before = listening()
    path = next(locate("smollm2-135m-instruct").glob("*.gguf"))
    server = LlamaServer(path, slots=2, context=512, threads=1)
    assert listening() == before, "it must not be on the network"
    yield server
    server.close()
    server.close()


def tokens(server: LlamaServer) -> list[int]:
    return server.tokenize(server.render(HELLO), special=True)


def test_a_missing_or_other_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LlamaServer(tmp_path / "none.gguf", slots=1, context=64, threads=1)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"something else")
    with pytest.raises(ValueError, match="not a GGUF file"):
        LlamaServer(other, slots=1, context=64, threads=1)


@pytest.mark.weights
def test_a_broken_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(LlamaError, match="could not load"):
        LlamaServer(broken, slots=1, context=64, threads=1)


@pytest.mark.weights
@pytest.mark.skipif(sys.platform != "linux", reason="threads have their own niceness on Linux")
def test_its_threads_give_way_to_the_others(server: LlamaServer) -> None:
    tokens = server.tokenize("Hello", special=True)
    server.complete(Completion(tokens, 0, 1), lambda text, evaluated: False)
    threads = [int(name) for name in os.listdir("/proc/self/task")]
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    nice = [thread for thread in threads if os.getpriority(os.PRIO_PROCESS, thread) > mine]
    assert nice
    assert threading.get_native_id() not in nice


def test_text_comes_in_pieces_and_the_prompt_is_cached_afterwards(server: LlamaServer) -> None:
    prompt = tokens(server)
    pieces: list[str] = []

    def step(text: str, evaluated: int) -> bool:
        pieces.append(text)
        return False

    first = server.complete(Completion(prompt, 0, 8, GREEDY), step)
    assert first.cached + first.evaluated == len(prompt)
    assert 0 < first.generated <= 8
    assert sum(bool(piece) for piece in pieces) > 1
    again = server.complete(Completion(prompt, 0, 8, GREEDY), step)
    assert again.cached == len(prompt) - 1


@pytest.mark.weights
def test_it_stops_between_two_tokens(server: LlamaServer) -> None:
    completed = server.complete(Completion(tokens(server), 0, 100), lambda text, _: bool(text))
    assert (completed.reason, completed.generated) == ("stopped", 1)


@pytest.mark.weights
def test_it_stops_within_the_prompt_and_keeps_what_it_evaluated(server: LlamaServer) -> None:
    prompt = server.tokenize("one two three four five six seven " * 40, special=True)
    stopped = server.complete(Completion(prompt, 1, 1), lambda _, evaluated: evaluated >= 64)
    assert stopped.reason == "stopped"
    assert 64 <= stopped.evaluated < len(prompt)
    completed = server.complete(Completion(prompt, 1, 1, GREEDY), lambda *_: False)
    assert completed.cached >= stopped.evaluated - 1


@pytest.mark.weights
def test_an_error_in_the_callback_comes_out(server: LlamaServer) -> None:
    def fail(text: str, evaluated: int) -> bool:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        server.complete(Completion(tokens(server), 0, 5), fail)


@pytest.mark.weights
def test_a_prompt_beyond_the_slot_is_refused(server: LlamaServer) -> None:
    with pytest.raises(LlamaError) as caught:
        server.complete(Completion([5] * 600, 0, 5), lambda *_: False)
    assert caught.value.too_long


@pytest.mark.weights
def test_a_text_follows_its_schema(server: LlamaServer) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "pattern": "^(?=x)"}, "on": {"type": "boolean"}},
        "required": ["on"],
        "propertyNames": {"minLength": 2},
    }
    schema = call_schema([{"name": "look", "parameters": parameters}])
    pieces: list[str] = []
    server.complete(
        Completion(tokens(server), 0, 60, GREEDY, schema),
        lambda text, _: bool(pieces.append(text)),  # type: ignore[func-returns-value]
    )
    text = "".join(pieces)
    call = json.loads(text)
    assert call["name"] == "look"
    assert isinstance(call["arguments"]["on"], bool)


@pytest.mark.weights
def test_what_it_refuses_is_told(server: LlamaServer) -> None:
    with pytest.raises(LlamaError, match="refused"):
        server.render([{"role": 5}])
