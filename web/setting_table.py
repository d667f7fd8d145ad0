"""All settings by name: those of the server itself, of its engines, and the limits of sessions."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, get_args, get_type_hints

from duologue.sessions.session_config import SessionLimits
from duologue.web.duplex_settings import DuplexSettings
from duologue.web.language_settings import LanguageSettings
from duologue.web.setting import About, Setting
from duologue.web.settings import LIMITS_GROUP, Settings

LIMITS: Final[Mapping[str, About]] = {
    name: About(text, LIMITS_GROUP, low, 1 if name == "turn_threshold" else None)
    for name, text, low in [
        (
            "audio_lead",
            "seconds that sent audio may run ahead of the listener; inf for batch use",
            0.1,
        ),
        ("delta_ms", "milliseconds of audio in one delta at most", 20),
        ("idle_timeout", "seconds without any event after which a session is closed", 1),
        ("max_duration", "seconds that a session lasts at most", 1),
        ("max_items", "items in a conversation", 1),
        ("max_text", "characters in all items of a conversation", 1),
        ("max_buffer_seconds", "seconds of audio in the input buffer", 1),
        ("max_out_of_band", "responses outside the conversation at a time", 0),
        (
            "overlap_judgement",
            "seconds of overlap that are an interruption with backchannel_aware",
            0,
        ),
        ("speculation_after", "seconds of silence after which an answer is drafted", 0),
        ("release_after", "least seconds of silence before an answer with semantic_vad", 0),
        ("turn_threshold", "probability from which the turn detector is sure", 0),
        ("turn_policy", "who yields when both speak, unless a session chooses", None),
    ]
}
"""What is said of each limit of a session that can be set."""


def _plain(kind: Any) -> Any:
    """A type without its `None`."""
    arguments = [argument for argument in get_args(kind) if argument is not type(None)]
    return arguments[0] if type(None) in get_args(kind) else kind


def _collect() -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for owner in (Settings, LanguageSettings, DuplexSettings, SessionLimits):
        hints = get_type_hints(owner)
        for entry in fields(owner):
            about = entry.metadata.get("about") or LIMITS.get(entry.name)
            if about is None:
                continue
            found[entry.name] = Setting(
                entry.name, _plain(hints[entry.name]), entry.default, about, not entry.repr
            )
    return found


SETTINGS: Final = _collect()
"""All settings by name."""
