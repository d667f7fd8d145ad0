from pathlib import Path

import pytest

from duologue.engines.chat_endpoint_impl import ChatEndpointStage
from duologue.engines.llama_prompts import LlamaStage
from duologue.models.hub import HubError
from duologue.models.weights import WeightsMissing
from duologue.web import language_setup
from duologue.web.cascade_setup import cascade_config
from duologue.web.language_setup import CHAT_CONTEXT, EMBEDDED, EMBEDDED_LITE
from duologue.web.settings import Settings, SettingsError

NO_HUB = "the hub can't be reached"


def fail(hub_id: str, cache: Path) -> Path:
    raise HubError(NO_HUB)


@pytest.mark.weights
def test_by_default_everything_is_embedded() -> None:
    config = cascade_config(Settings())
    assert isinstance(config.language, LlamaStage)
    assert config.language.name == EMBEDDED
    assert [voice.name for voice in config.piper] == ["joe"]
    for path in (config.recognizer, config.turn_detector, config.kokoro, config.language.path):
        assert Path(path).exists()
    assert EMBEDDED in config.description


@pytest.mark.weights
def test_the_small_set_has_the_small_model_and_one_voice() -> None:
    config = cascade_config(Settings(lite=True, voice="joe", slots=3))
    assert isinstance(config.language, LlamaStage)
    assert config.language.name == EMBEDDED_LITE
    assert config.kokoro == ""
    assert (config.default_voice, config.capacity) == ("joe", 3)


@pytest.mark.weights
def test_a_chat_endpoint_takes_the_place_of_the_language_model() -> None:
    settings = Settings(
        chat_url="http://127.0.0.1:1/v1", chat_model="m", chat_key="k", chat_sees=True
    )
    config = cascade_config(settings)
    stage = config.language
    assert isinstance(stage, ChatEndpointStage)
    assert (stage.base_url, stage.model, stage.api_key) == ("http://127.0.0.1:1/v1", "m", "k")
    assert stage.sees
    assert stage.context_tokens == CHAT_CONTEXT
    assert "k" not in config.description.split()


@pytest.mark.weights
def test_any_gguf_file_may_answer(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"GGUF and more")
    config = cascade_config(Settings(llm=str(path), context_tokens=512))
    assert isinstance(config.language, LlamaStage)
    assert (config.language.path, config.language.name) == (str(path), "mine")
    assert config.language.context == 512


@pytest.mark.weights
def test_a_hub_id_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(language_setup, "fetch_gguf", lambda name, cache: tmp_path / "a.gguf")
    config = cascade_config(Settings(llm="owner/name"))
    assert isinstance(config.language, LlamaStage)
    assert config.language.path == str(tmp_path / "a.gguf")


@pytest.mark.parametrize("name", ["nowhere.gguf", "/no/such/file.gguf"])
def test_a_file_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=f"there is no file {name}"):
        cascade_config(Settings(llm=name))


def test_a_file_that_is_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"PK and more")
    with pytest.raises(SettingsError, match="not a GGUF file"):
        cascade_config(Settings(llm=str(path)))


def test_a_hub_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_setup, "fetch_gguf", fail)
    with pytest.raises(SettingsError, match=NO_HUB):
        cascade_config(Settings(llm="owner/name"))


def test_models_that_were_not_fetched_are_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing):
        cascade_config(Settings(cache=tmp_path))
