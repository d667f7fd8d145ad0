"""A spoken question in and a spoken answer out, with each engine that takes a model's folder."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from duologue.models.weights import locate
from load_tests.server import Server, serving
from load_tests.tiny_model import Geometry, write_model

pytestmark = [pytest.mark.anyio, pytest.mark.weights, pytest.mark.timeout(1800)]

START_SECONDS = 1200.0
"""vLLM alone needs minutes on a busy processor."""

TURN_SECONDS = 240.0
"""Between two events of a turn on a busy one."""


@contextmanager
def talking(engine: str, folder: Path) -> Iterator[Server]:
    """A server with a model of this folder."""
    options = ["--lite", "--llm", str(folder), "--llm-engine", engine, "--llm-max-tokens", "16"]
    options += ["--llm-eager"] if engine == "vllm" else []
    with serving(options, seconds=START_SECONDS) as running:
        yield running


def need(*packages: str) -> None:
    for needed in packages:
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def talker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with a model that was made up."""
    engine: str = request.param
    need("torch", "transformers", engine)
    folder = write_model(tmp_path_factory.mktemp("models") / "tiny-talker", Geometry(), seed=1)
    with talking(engine, folder) as running:
        yield running


def convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's model as the folder that vLLM reads."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {
        name: weight.clone() for name, weight in model.state_dict().items() if name not in tied
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config |= {"architectures": [type(model).__name__], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


@pytest.fixture(scope="module")
def knowing_talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with vLLM and the small embedded model, which was trained."""
    need("torch", "transformers", "gguf", "accelerate", "vllm")
    folder = tmp_path_factory.mktemp("models") / "smollm2"
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        convert(next(locate("smollm2-135m-instruct").glob("*.gguf")), folder)
    with talking("vllm", folder) as running:
        yield running


async def spoken_answer(wire: Any, question: bytes) -> str:
    """What is said to the spoken question; there is sound of it."""
    wire.patience = TURN_SECONDS
    await wire.speak(question)
    done = await wire.until("response.done")
    assert done["response"]["status"] in ("completed", "incomplete")
    assert done["response"]["usage"]["output_tokens"] > 0
    assert any(event["type"] == "response.output_audio.delta" for event in wire.seen)
    said: str = done["response"]["output"][0]["content"][0]["transcript"]
    return said


async def test_a_spoken_question_gets_a_spoken_answer(
    talker: Server, open_session: Any, question: bytes
) -> None:
    async with open_session(talker) as wire:
        assert await spoken_answer(wire, question)


async def test_vllm_with_a_trained_model_talks_and_knows_what_it_was_taught(
    knowing_talker: Server, open_session: Any, question: bytes
) -> None:
    async with open_session(knowing_talker) as wire:
        assert await spoken_answer(wire, question)
    asked = {"role": "user", "content": "What is the capital of France?"}
    answer = await completion(knowing_talker, [asked], max_tokens=16)
    assert "Paris" in answer["choices"][0]["message"]["content"]


async def completion(server: Server, messages: list[Any], **options: Any) -> Any:
    """The likeliest answer, in text."""
    async with httpx.AsyncClient(
        base_url=server.url, trust_env=False, timeout=TURN_SECONDS
    ) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        body = {"model": model, "messages": messages, "temperature": 0, **options}
        return (await client.post("/v1/chat/completions", json=body)).json()


async def test_the_same_model_answers_chat_completions(talker: Server) -> None:
    hello = [{"role": "user", "content": "Hello!"}]
    answers = [await completion(talker, hello, max_tokens=8) for _ in range(2)]
    assert answers[0]["choices"][0]["message"] == answers[1]["choices"][0]["message"]
    assert answers[0]["usage"]["completion_tokens"] == 8 or (
        answers[0]["choices"][0]["finish_reason"] == "stop"
    )


def test_a_folder_that_lacks_its_weights_is_told_at_the_start(tmp_path: Path) -> None:
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    from load_tests.server import ServerError

    folder = write_model(tmp_path, Geometry(), seed=None)
    options = ["--lite", "--llm", str(folder), "--llm-engine", "transformers"]
    with pytest.raises(ServerError, match="has no weights"), serving(options, seconds=120):
        pass
