# ruff: noqa: E402
"""The stage on transformers, held against what transformers itself generates."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from duologue.engines.engine import ImagePart, Message, ResponseRequest, TextPart, Tool
from duologue.engines.fairness import Rank
from duologue.engines.language import Began, Finished, Generated, LanguageError, TextPiece
from duologue.engines.pulse import Pulse
from duologue.engines.template_prompts import template_prompt
from duologue.engines.transformers_impl import TransformersModel, device_of, type_of
from duologue.engines.transformers_language import TransformersLanguage
from duologue.engines.transformers_stage import TransformersStage
from duologue.models.model_folder import ModelFolderError
from load_tests.tiny_model import Geometry, write_model

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), Geometry(), seed=3)


@pytest.fixture(scope="module")
def model(folder: Path) -> TransformersModel:
    return TransformersModel(TransformersStage(path=str(folder), threads=1))


@pytest.fixture
async def language(model: TransformersModel) -> AsyncIterator[TransformersLanguage]:
    stage = TransformersStage(path="/m", name="tiny", max_new_tokens=24)
    made = TransformersLanguage(stage, Pulse(), lambda _: model)
    await made.load()
    yield made


def request(text: str = "Tell me about the dog.", **fields: object) -> ResponseRequest:
    messages = (Message("user", (TextPart(text),)),)
    fields = {"temperature": 0.0, **fields}
    return ResponseRequest(instructions="Be brief.", messages=messages, **fields)  # type: ignore[arg-type]


async def read(
    language: TransformersLanguage, asked: ResponseRequest, session: str = "s"
) -> list[Generated]:
    async with language.answer(session, asked, lambda: Rank.FIRST) as pieces:
        return [piece async for piece in pieces]


def said(pieces: list[Generated]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


def ended(pieces: list[Generated]) -> Finished:
    assert isinstance(pieces[-1], Finished)
    return pieces[-1]


def expected(model: TransformersModel, folder: Path, asked: ResponseRequest, most: int) -> str:
    """What transformers' own generation says."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    own = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    shown = template_prompt(asked, knows_tools=True)
    prompt = torch.tensor([model.prompt(shown.messages, shown.tools, True)])
    made = own.generate(prompt, do_sample=False, max_new_tokens=most)
    text: str = tokenizer.decode(made[0, prompt.shape[1] :], skip_special_tokens=True)
    return text


async def test_it_says_what_transformers_itself_generates(
    language: TransformersLanguage, model: TransformersModel, folder: Path
) -> None:
    for text in ("Hello!", "Tell me about the dog.", "One, two, three."):
        asked = request(text)
        pieces = await read(language, asked)
        assert said(pieces) == expected(model, folder, asked, 24) != ""


async def test_a_history_is_evaluated_once_and_nothing_changes_by_that(
    language: TransformersLanguage,
) -> None:
    alone = await read(language, request(), "other")
    await read(language, request("Tell me about the house."))
    after = await read(language, request())
    assert isinstance(alone[0], Began) and isinstance(after[0], Began)
    assert after[0].cached_tokens > alone[0].cached_tokens == 0
    assert said(after) == said(alone)


async def test_a_warmed_prompt_is_not_evaluated_again(language: TransformersLanguage) -> None:
    alone = await read(language, request(), "other")
    await language.warm("s", request())
    pieces = await read(language, request())
    began = pieces[0]
    assert isinstance(began, Began)
    assert began.cached_tokens > began.input_tokens // 2
    assert said(pieces) == said(alone)


async def test_two_sessions_at_once_say_what_each_says_alone(
    language: TransformersLanguage,
) -> None:
    texts = ("Hello!", "Tell me about the dog.")
    alone = [said(await read(language, request(text), f"alone {text}")) for text in texts]
    together: dict[str, str] = {}

    async def ask(text: str) -> None:
        together[text] = said(await read(language, request(text), text))

    async with anyio.create_task_group() as group:
        for text in texts:
            group.start_soon(ask, text)
    assert [together[text] for text in texts] == alone


async def test_leaving_an_answer_stops_it_and_the_next_one_is_right(
    language: TransformersLanguage,
) -> None:
    alone = said(await read(language, request(), "other"))
    async with language.answer("s", request(), lambda: Rank.FIRST) as pieces:
        async for piece in pieces:
            if isinstance(piece, TextPiece):
                break
    assert said(await read(language, request())) == alone


async def test_an_answer_ends_before_a_stop_text(language: TransformersLanguage) -> None:
    whole = said(await read(language, request()))
    stop = whole[len(whole) // 2 :][:3]
    pieces = await read(language, request(stop=(stop,)))
    assert said(pieces) == whole[: whole.index(stop)]
    assert ended(pieces).reason == "completed"


async def test_a_seed_makes_chance_come_again(language: TransformersLanguage) -> None:
    one, same, other = [
        said(await read(language, request(temperature=1.5, seed=seed))) for seed in (1, 1, 2)
    ]
    assert one == same != other


async def test_an_answer_is_bounded(language: TransformersLanguage) -> None:
    pieces = await read(language, request(max_output_tokens=3))
    assert ended(pieces).usage.output_tokens == 3
    assert ended(pieces).reason == "max_output_tokens"


async def test_a_prompt_that_is_too_long_is_refused(language: TransformersLanguage) -> None:
    with pytest.raises(LanguageError) as raised:
        await read(language, request("word " * 2000, whole=True))
    assert raised.value.failure.code == "context_too_long"


async def test_pictures_are_refused(language: TransformersLanguage) -> None:
    seen = (Message("user", (ImagePart("data:,"),)),)
    with pytest.raises(LanguageError, match="no pictures"):
        await read(language, ResponseRequest(instructions="", messages=seen))


async def test_tools_are_in_the_prompt(model: TransformersModel) -> None:
    weather = Tool("weather", "tells it", '{"type": "object", "properties": {}}')
    shown = template_prompt(request(tools=(weather,)), knows_tools=model.knows_tools)
    with_tools = model.prompt(shown.messages, shown.tools, True)
    assert len(with_tools) > len(model.prompt(shown.messages, [], True))


async def test_a_memory_that_can_not_be_cut_begins_anew(
    language: TransformersLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duologue.engines import transformers_impl

    alone = said(await read(language, request(), "other"))
    monkeypatch.setattr(transformers_impl, "_croppable", lambda cache: False)
    await read(language, request("Hello!"))
    assert said(await read(language, request())) == alone


def test_a_folder_that_lacks_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"config\.json"):
        TransformersModel(TransformersStage(path=str(tmp_path)))


def test_an_architecture_that_nobody_knows_is_told(tmp_path: Path) -> None:
    write_model(tmp_path, Geometry(), seed=3)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("qwen2", "nobodys").replace("Qwen2", "Nobodys"))
    with pytest.raises(ValueError, match=r"llm: .*nobodys"):
        TransformersModel(TransformersStage(path=str(tmp_path)))


def test_a_device_or_a_type_that_is_not_there_names_its_setting() -> None:
    with pytest.raises(ValueError, match="llm_device: nowhere"):
        device_of("nowhere")
    with pytest.raises(ValueError, match="llm_dtype: int8"):
        type_of("int8")
