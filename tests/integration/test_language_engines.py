"""A spoken question in and a spoken answer out, with each engine that takes a model's folder."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from load_tests.server import Server, serving
from load_tests.tiny_model import Geometry, write_model

pytestmark = [pytest.mark.anyio, pytest.mark.weights, pytest.mark.timeout(1800)]

START_SECONDS = 1200.0
"""vLLM alone needs minutes on a busy processor."""


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def talker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    engine: str = request.param
    for needed in ("torch", "transformers", engine):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    folder = write_model(tmp_path_factory.mktemp("models") / "tiny-talker", Geometry(), seed=1)
    options = ["--lite", "--llm", str(folder), "--llm-engine", engine, "--llm-max-tokens", "16"]
    options += ["--llm-eager"] if engine == "vllm" else []
    with serving(options, seconds=START_SECONDS) as running:
        yield running


async def test_a_spoken_question_gets_a_spoken_answer(
    talker: Server, open_session: Any, question: bytes
) -> None:
    async with open_session(talker) as wire:
        await wire.speak(question)
        done = await wire.until("response.done")
    assert done["response"]["status"] in ("completed", "incomplete")
    assert done["response"]["usage"]["output_tokens"] > 0
    heard = [event for event in wire.seen if event["type"] == "response.output_audio.delta"]
    assert heard


async def test_the_same_model_answers_chat_completions(talker: Server) -> None:
    async with httpx.AsyncClient(base_url=talker.url, trust_env=False, timeout=120) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
        answers = [
            (
                await client.post(
                    "/v1/chat/completions", json={**body, "temperature": 0, "max_tokens": 8}
                )
            ).json()
            for _ in range(2)
        ]
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
