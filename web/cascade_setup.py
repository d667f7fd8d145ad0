"""What the settings say about the models, as the worker's configuration."""

from pathlib import Path

from duologue.engines.cascade import CascadeConfig, PiperVoice
from duologue.engines.chat_endpoint_impl import ChatEndpointStage
from duologue.engines.llama_prompts import LlamaStage
from duologue.models.hub import HubError, fetch_gguf, is_hub_id
from duologue.models.weights import WeightsMissing, cache_folder, locate, locate_or_fallback
from duologue.web.settings import Settings, SettingsError

EMBEDDED = "qwen2.5-coder-0.5b-instruct"
EMBEDDED_LITE = "smollm2-135m-instruct"
EMBEDDED_CONTEXT = 2048
CHAT_CONTEXT = 32_768
PIPER_NAME = "joe"


def cascade_config(settings: Settings) -> CascadeConfig:
    """Where everything is. Reads files, so call it before the event loop runs.

    Raises WeightsError for a model that is missing or altered, SettingsError for a language model
    that can't be had.
    """
    language = _language(settings)
    kokoro = "" if settings.lite else _kokoro(settings)
    return CascadeConfig(
        recognizer=str(locate("whisper-tiny.en", cache=settings.cache)),
        turn_detector=str(_only(locate("smart-turn", cache=settings.cache), ".onnx")),
        language=language,
        kokoro=kokoro,
        piper=_piper(settings, needed=not kokoro),
        default_voice=settings.voice or "",
        capacity=settings.slots or 0,
        description=_description(language),
    )


def _language(settings: Settings) -> LlamaStage | ChatEndpointStage:
    if settings.chat_url is not None:
        return ChatEndpointStage(
            base_url=settings.chat_url,
            model=settings.chat_model or "",
            api_key=settings.chat_key or "",
            sees=settings.chat_sees,
            context_tokens=settings.context_tokens or CHAT_CONTEXT,
        )
    context = settings.context_tokens or EMBEDDED_CONTEXT
    if settings.llm is not None:
        path = _gguf(settings.llm, settings)
        return LlamaStage(path=str(path), name=path.stem, context=context)
    found = locate_or_fallback(EMBEDDED_LITE if settings.lite else EMBEDDED, cache=settings.cache)
    return LlamaStage(path=str(_only(found.folder, ".gguf")), name=found.name, context=context)


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


def _kokoro(settings: Settings) -> str:
    """Kokoro's folder, or "" where only its fallback is there."""
    found = locate_or_fallback("kokoro-82m", cache=settings.cache)
    return str(found.folder) if found.name == "kokoro-82m" else ""


def _piper(settings: Settings, *, needed: bool) -> tuple[PiperVoice, ...]:
    try:
        folder = locate("piper-joe", cache=settings.cache)
    except WeightsMissing:
        if needed:
            raise
        return ()
    return (PiperVoice(path=str(_only(folder, ".onnx")), name=PIPER_NAME),)


def _only(folder: Path, ending: str) -> Path:
    return next(path for path in sorted(folder.iterdir()) if path.name.endswith(ending))


def _description(language: LlamaStage | ChatEndpointStage) -> str:
    if isinstance(language, ChatEndpointStage):
        return f"{language.model} behind a chat endpoint, with embedded ears and voice."
    return f"{language.name}, run on this machine's processor, with embedded ears and voice."
