"""What the settings say about the language model, as its stage's configuration."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from duologue.engines.chat_endpoint_impl import ChatEndpointStage
from duologue.engines.language_choice import LanguageConfig
from duologue.engines.llama_prompts import LlamaStage
from duologue.engines.transformers_stage import TransformersStage
from duologue.engines.vllm_stage import VllmStage
from duologue.models.hub import HubError, fetch_gguf, is_hub_id
from duologue.models.weights import cache_folder, locate_or_fallback
from duologue.web.settings import Settings, SettingsError

EMBEDDED: Final = "qwen2.5-coder-0.5b-instruct"
EMBEDDED_LITE: Final = "smollm2-135m-instruct"
EMBEDDED_CONTEXT: Final = 2048
CHAT_CONTEXT: Final = 32_768

READY_SECONDS: Final = 300.0
READY_SECONDS_LARGE: Final = 1200.0
"""Weights of many gigabytes are read, kernels compiled, CUDA graphs captured."""


def language_config(settings: Settings) -> LanguageConfig:
    """The stage's configuration. Reads files; raises SettingsError, WeightsError."""
    engine = language_engine(settings)
    if unfit := settings.language.unfit(engine):
        with_what = "chat_url" if engine == "chat" else f"llm_engine {engine}"
        raise SettingsError(f"{unfit[0]} has no meaning with {with_what}")
    match engine:
        case "chat":
            return _chat(settings)
        case "vllm":
            return _vllm(settings)
        case "transformers":
            return _transformers(settings)
        case _:
            return _llama(settings)


def language_engine(settings: Settings) -> str:
    """What runs the language model: chat, llama, vllm or transformers. Raises SettingsError."""
    chosen = settings.language.llm_engine
    if settings.chat_url is not None:
        if chosen != "auto":
            raise SettingsError("llm_engine and chat_url exclude each other")
        return "chat"
    folder = settings.llm is not None and Path(settings.llm).expanduser().is_dir()
    if chosen == "auto":
        if not folder:
            return "llama"
        chosen = "vllm" if find_spec("vllm") is not None else "transformers"
    elif chosen == "llama" and folder:
        raise SettingsError(f"llm: {settings.llm} is a folder; llm_engine llama takes GGUF files")
    elif chosen == "vllm" and not folder:
        raise SettingsError("llm_engine vllm needs llm, a folder with a config.json")
    elif chosen == "transformers" and settings.llm is None:
        raise SettingsError("llm_engine transformers needs llm, a folder or a GGUF file")
    if chosen != "llama" and find_spec(chosen) is None:
        raise SettingsError(
            f"llm_engine: {chosen} is not installed; pip install 'duologue[{chosen}]'"
        )
    return chosen


def ready_seconds(settings: Settings) -> float:
    """How long a worker may take until it is ready."""
    if settings.engine == "scripted" or language_engine(settings) in ("chat", "llama"):
        return READY_SECONDS
    return READY_SECONDS_LARGE


def describe(language: LanguageConfig) -> str:
    """One sentence on the model, for clients that list models."""
    match language:
        case ChatEndpointStage():
            return f"{language.model} behind a chat endpoint, with embedded ears and voice."
        case VllmStage():
            return f"{language.name}, run by vLLM, with embedded ears and voice."
        case TransformersStage():
            return f"{language.name}, run by transformers, with embedded ears and voice."
        case LlamaStage():
            return (
                f"{language.name}, run on this machine's processor, with embedded ears and voice."
            )


def _chat(settings: Settings) -> ChatEndpointStage:
    own = ChatEndpointStage(base_url=settings.chat_url or "", model=settings.chat_model or "")
    return ChatEndpointStage(
        base_url=own.base_url,
        model=own.model,
        api_key=settings.chat_key or "",
        sees=settings.chat_sees,
        context_tokens=settings.context_tokens or CHAT_CONTEXT,
        temperature=settings.language.llm_temperature,
        batch=settings.language.llm_batch or own.batch,
    )


def _llama(settings: Settings) -> LlamaStage:
    language = settings.language
    if settings.llm is not None:
        path = _gguf(settings.llm, settings)
        own = LlamaStage(path=str(path), name=path.stem)
    else:
        embedded = EMBEDDED_LITE if settings.lite else EMBEDDED
        found = locate_or_fallback(embedded, cache=settings.cache)
        own = LlamaStage(path=str(_only_gguf(found.folder)), name=found.name)
    return LlamaStage(
        path=own.path,
        name=own.name,
        context=settings.context_tokens or EMBEDDED_CONTEXT,
        batch_slots=language.llm_batch or own.batch_slots,
        max_new_tokens=language.llm_max_tokens or own.max_new_tokens,
        temperature=_or(language.llm_temperature, own.temperature),
        seed=-1 if language.llm_seed is None else language.llm_seed % (2**32 - 1),
    )


def _vllm(settings: Settings) -> VllmStage:
    language = settings.language
    path = _folder(settings.llm or "")
    own = VllmStage(path=str(path), name=path.resolve().name)
    return VllmStage(
        path=own.path,
        name=own.name,
        context=settings.context_tokens or 0,
        batch=language.llm_batch or own.batch,
        max_new_tokens=language.llm_max_tokens or own.max_new_tokens,
        temperature=language.llm_temperature,
        seed=language.llm_seed,
        dtype=language.llm_dtype,
        quantization=language.llm_quantization or "",
        load_format=language.llm_load_format or "",
        tensor_parallel=language.llm_tensor_parallel or own.tensor_parallel,
        pipeline_parallel=language.llm_pipeline_parallel or own.pipeline_parallel,
        gpu_memory=language.llm_gpu_memory or 0.0,
        eager=language.llm_eager,
        trust_remote_code=language.trust_remote_code,
        tool_parser=language.llm_tool_parser or "",
        reasoning_parser=language.llm_reasoning_parser or "",
        chat_template=_template(settings),
        media_hosts=language.llm_media_hosts,
    )


def _transformers(settings: Settings) -> TransformersStage:
    language = settings.language
    text = settings.llm or ""
    folder = Path(text).expanduser().is_dir()
    path = _folder(text) if folder else _gguf(text, settings)
    name = path.stem if path.is_file() else path.resolve().name
    own = TransformersStage(path=str(path), name=name)
    return TransformersStage(
        path=own.path,
        name=own.name,
        context=settings.context_tokens or 0,
        batch=language.llm_batch or own.batch,
        max_new_tokens=language.llm_max_tokens or own.max_new_tokens,
        temperature=language.llm_temperature,
        seed=language.llm_seed,
        device=language.llm_device or "",
        dtype=language.llm_dtype,
        trust_remote_code=language.trust_remote_code,
        chat_template=_template(settings),
    )


def _template(settings: Settings) -> str:
    path = settings.language.llm_chat_template
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"llm_chat_template: {path} can't be read: {error}") from None


def _or(given: float | None, own: float) -> float:
    return own if given is None else given


def _folder(text: str) -> Path:
    path = Path(text).expanduser()
    if not (path / "config.json").is_file():
        raise SettingsError(f"llm: the folder {path} has no config.json")
    return path


def _gguf(text: str, settings: Settings) -> Path:
    path = Path(text).expanduser()
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise SettingsError(f"llm: {path} is not a GGUF file")
        return path
    if not is_hub_id(text):
        raise SettingsError(f"llm: there is no file {path}")
    try:
        return fetch_gguf(text, settings.cache or cache_folder())
    except HubError as error:
        raise SettingsError(f"llm: {error}") from error


def _only_gguf(folder: Path) -> Path:
    return next(path for path in sorted(folder.iterdir()) if path.name.endswith(".gguf"))
