"""What the settings say about the models, as the worker's configuration."""

from pathlib import Path

from duologue.engines.cascade import CascadeConfig
from duologue.engines.voice_backend import PiperVoice
from duologue.models.vision import WEIGHTS as VISION
from duologue.models.weights import WeightsMissing, locate, locate_or_fallback
from duologue.web.language_setup import describe, language_config
from duologue.web.settings import Settings

PIPER_NAME = "joe"


def cascade_config(settings: Settings) -> CascadeConfig:
    """Where everything is. Reads files, so call it before the event loop runs.

    Raises WeightsError for a model that is missing or altered, SettingsError for a language model
    that can't be had.
    """
    language = language_config(settings)
    kokoro = "" if settings.lite else _kokoro(settings)
    return CascadeConfig(
        recognizer=str(locate("whisper-tiny.en", cache=settings.cache)),
        turn_detector=str(_only(locate("smart-turn", cache=settings.cache), ".onnx")),
        language=language,
        kokoro=kokoro,
        piper=_piper(settings, needed=not kokoro),
        default_voice=settings.voice or "",
        capacity=settings.slots or 0,
        description=describe(language),
        vision=str(VISION),
    )


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
