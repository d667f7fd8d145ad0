"""What the settings say about a frame-locked model, as the worker's configuration."""

import importlib.util
from pathlib import Path
from typing import Final

import msgspec

from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.duplex_script import DuplexScriptOptions
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.moshi_options import MoshiOptions
from duologue.engines.recognizer_backend import RecognizerConfig
from duologue.models.hub import HubError
from duologue.models.moshi.snapshot import checkpoint_folder
from duologue.models.weights import WeightsMissing, cache_folder, locate
from duologue.web.settings import Settings, SettingsError

SLOTS: Final = 32
"""Where none are set."""

RECOGNIZER: Final = "whisper-tiny.en"
EXTRA: Final = ("torch", "safetensors", "sentencepiece")


def frame_locked(settings: Settings) -> bool:
    """Whether the engine is a model that listens while it speaks."""
    return settings.engine in ("moshi", "scripted-duplex")


def moshi_options(settings: Settings) -> MoshiOptions:
    """Where the checkpoint is and how it is run. Reads files, so call it before the event loop
    runs. Raises SettingsError for what can be told to be wrong before anything is loaded."""
    duplex = settings.duplex
    if duplex.moshi is None:
        raise SettingsError("moshi: --engine moshi needs a checkpoint, as --moshi FOLDER")
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"engine: moshi needs {', '.join(missing)}: pip install 'duologue[moshi]'"
        )
    try:
        folder = checkpoint_folder(duplex.moshi, settings.cache or cache_folder())
    except HubError as error:
        raise SettingsError(f"moshi: {error}") from error
    if not any(folder.glob("*.safetensors")):
        raise SettingsError(f"moshi: {folder} has no .safetensors file")
    device = duplex.moshi_device or ""
    if duplex.moshi_tensor_parallel > 1 and device not in ("", "cpu", "cuda"):
        raise SettingsError(
            f"moshi_device: {device} is one device, and moshi_tensor_parallel takes "
            f"{duplex.moshi_tensor_parallel}; say cuda, and which in the deployment's devices"
        )
    local = Path(duplex.moshi).expanduser()
    name = local.resolve().name if local.is_dir() else duplex.moshi.rsplit("/", 1)[-1]
    return MoshiOptions(
        folder=str(folder),
        name=name,
        device=device,
        dtype="" if duplex.moshi_dtype == "auto" else duplex.moshi_dtype,
        weights="" if duplex.moshi_weights == "auto" else duplex.moshi_weights,
        tensor_parallel=duplex.moshi_tensor_parallel,
        kv_dtype="" if duplex.moshi_kv_dtype == "auto" else duplex.moshi_kv_dtype,
        default_voice=settings.voice or "",
        limits=duplex_limits(settings),
    )


def duplex_script(settings: Settings) -> DuplexScriptOptions:
    """The script, from its file if one is named. Raises SettingsError."""
    options = DuplexScriptOptions()
    if settings.script is not None:
        try:
            options = msgspec.json.decode(settings.script.read_bytes(), type=DuplexScriptOptions)
        except OSError as error:
            raise SettingsError(f"script: {settings.script}: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise SettingsError(f"script: {settings.script}: {error}") from None
    return msgspec.structs.replace(options, limits=duplex_limits(settings))


def recognizers(settings: Settings) -> tuple[WorkerConfig, ...]:
    """The worker that writes down what users say to a frame-locked model, if there is to be one.

    Reads files, so call it before the event loop runs. Raises SettingsError, and WeightsAltered
    for files that are not what they should be.
    """
    wanted = settings.duplex.duplex_transcripts
    if not frame_locked(settings) or wanted == "off":
        return ()
    if settings.engine == "scripted-duplex" and wanted == "auto":
        script = duplex_script(settings).recognizer
        return () if script is None else (_recognizer(settings, "scripted", script),)
    try:
        folder = locate(RECOGNIZER, cache=settings.cache)
    except WeightsMissing as error:
        if wanted == "on":
            raise SettingsError(f"duplex_transcripts: {error}") from None
        return ()
    options = RecognizerConfig(recognizer=str(folder), capacity=settings.max_sessions)
    return (_recognizer(settings, "recognizer", options),)


def _recognizer(settings: Settings, backend: str, options: msgspec.Struct) -> WorkerConfig:
    return WorkerConfig(
        name="recognizer",
        backend=backend,
        directory="",
        options=msgspec.msgpack.encode(options),
        log_level=settings.log_level,
        log_format=settings.log_format,
    )


def duplex_limits(settings: Settings) -> DuplexLimits:
    """How many sessions, and with how much patience."""
    duplex = settings.duplex
    return DuplexLimits(
        slots=settings.slots or SLOTS,
        parked=duplex.duplex_parked,
        idle_s=duplex.duplex_idle,
        slow=duplex.duplex_slow,
    )
