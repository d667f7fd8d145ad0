from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from duologue.engines.chat_endpoint_impl import ChatEndpointStage
from duologue.engines.llama_prompts import LlamaStage
from duologue.engines.transformers_stage import TransformersStage
from duologue.engines.vllm_stage import VllmStage
from duologue.web import language_setup
from duologue.web.language_settings import LanguageSettings
from duologue.web.language_setup import (
    READY_SECONDS,
    READY_SECONDS_LARGE,
    describe,
    language_config,
    language_engine,
    ready_seconds,
)
from duologue.web.settings import Settings, SettingsError


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The packages that count as installed; to be changed."""
    names = {"vllm", "transformers"}

    def find(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name in names else None

    monkeypatch.setattr(language_setup, "find_spec", find)
    return names


def settings(llm: Path | None = None, **language: object) -> Settings:
    return Settings(
        llm=None if llm is None else str(llm),
        language=replace(LanguageSettings(), **language),  # type: ignore[arg-type]
    )


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"GGUF and more")
    return path


def test_a_folder_is_served_by_vllm_where_it_is_installed(
    installed: set[str], tmp_path: Path
) -> None:
    assert language_engine(settings(tmp_path)) == "vllm"
    installed.remove("vllm")
    assert language_engine(settings(tmp_path)) == "transformers"
    installed.clear()
    with pytest.raises(SettingsError, match=r"duologue\[transformers\]"):
        language_engine(settings(tmp_path))


def test_a_file_is_llamas_unless_somebody_says_otherwise(installed: set[str], gguf: Path) -> None:
    assert language_engine(settings(gguf)) == "llama"
    assert language_engine(settings(gguf, llm_engine="transformers")) == "transformers"
    assert isinstance(language_config(settings(gguf, llm_engine="transformers")), TransformersStage)


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_an_engine_without_a_model_is_refused(installed: set[str], engine: str) -> None:
    with pytest.raises(SettingsError, match="needs llm"):
        language_engine(settings(None, llm_engine=engine))


def test_a_folder_is_nothing_for_llama(installed: set[str], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="GGUF"):
        language_engine(settings(tmp_path, llm_engine="llama"))


def test_a_chat_endpoint_has_no_engine_here() -> None:
    endpoint = Settings(
        chat_url="http://127.0.0.1:1/v1",
        chat_model="m",
        language=LanguageSettings(llm_engine="vllm"),
    )
    with pytest.raises(SettingsError, match="exclude each other"):
        language_config(endpoint)
    warm = replace(endpoint, language=LanguageSettings(llm_temperature=0.0, llm_batch=9))
    stage = language_config(warm)
    assert isinstance(stage, ChatEndpointStage)
    assert (stage.temperature, stage.batch) == (0.0, 9)


@pytest.mark.parametrize(
    ("engine", "name", "value"),
    [
        ("llama", "llm_dtype", "float16"),
        ("llama", "trust_remote_code", True),
        ("transformers", "llm_tensor_parallel", 2),
        ("transformers", "llm_tool_parser", "hermes"),
        ("vllm", "llm_device", "cpu"),
    ],
)
def test_a_setting_that_an_engine_does_not_have_is_refused(
    installed: set[str], gguf: Path, tmp_path: Path, engine: str, name: str, value: object
) -> None:
    chosen = settings(gguf if engine == "llama" else tmp_path, llm_engine=engine, **{name: value})
    with pytest.raises(SettingsError, match=f"{name} has no meaning with llm_engine {engine}"):
        language_config(chosen)


def test_llamas_stage_has_what_was_set(gguf: Path) -> None:
    stage = language_config(
        settings(gguf, llm_max_tokens=5, llm_temperature=0.0, llm_seed=3, llm_batch=2)
    )
    assert isinstance(stage, LlamaStage)
    assert (stage.max_new_tokens, stage.temperature, stage.seed) == (5, 0.0, 3)
    assert stage.batch_slots == 2


def test_vllms_stage_has_what_was_set(installed: set[str], tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    folder = tmp_path / "some-model"
    folder.mkdir()
    (folder / "config.json").touch()
    stage = language_config(
        settings(
            folder,
            llm_tensor_parallel=2,
            llm_pipeline_parallel=3,
            llm_gpu_memory=0.5,
            llm_quantization="fp8",
            llm_tool_parser="hermes",
            llm_reasoning_parser="qwen3",
            llm_chat_template=template,
            llm_media_hosts=("example.org",),
        )
    )
    assert isinstance(stage, VllmStage)
    assert (stage.name, stage.path) == ("some-model", str(folder))
    assert (stage.tensor_parallel, stage.pipeline_parallel, stage.gpu_memory) == (2, 3, 0.5)
    assert (stage.quantization, stage.tool_parser, stage.reasoning_parser) == (
        "fp8",
        "hermes",
        "qwen3",
    )
    assert stage.chat_template == "{{ messages }}"
    assert stage.media_hosts == ("example.org",)
    assert not stage.trust_remote_code
    assert "vLLM" in describe(stage)


def test_a_template_that_is_not_there_is_named(installed: set[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(SettingsError, match="llm_chat_template"):
        language_config(settings(tmp_path, llm_chat_template=tmp_path / "none"))


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_a_folder_without_a_model_is_named(
    installed: set[str], tmp_path: Path, engine: str
) -> None:
    with pytest.raises(SettingsError, match=r"llm: the folder .* has no config\.json"):
        language_config(settings(tmp_path, llm_engine=engine))


def test_large_models_have_more_time_to_start(installed: set[str], tmp_path: Path) -> None:
    assert ready_seconds(Settings(engine="scripted")) == READY_SECONDS
    assert ready_seconds(Settings()) == READY_SECONDS
    assert ready_seconds(settings(tmp_path)) == READY_SECONDS_LARGE
