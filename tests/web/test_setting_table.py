"""The table of all settings."""

from dataclasses import fields

import pytest

from duologue.sessions.session_config import SessionLimits
from duologue.web.setting_table import SETTINGS
from duologue.web.settings import Settings


def test_every_limit_is_a_setting() -> None:
    # Nobody can resume a session yet: there is no grace to be set.
    assert {entry.name for entry in fields(SessionLimits)} - {"grace"} <= set(SETTINGS)
    assert Settings().limits == SessionLimits()


@pytest.mark.parametrize("name", ["api_keys", "chat_key", "turn_password"])
def test_a_secret_is_marked(name: str) -> None:
    assert SETTINGS[name].secret


def test_a_setting_is_named_alike_as_a_variable_and_as_a_flag() -> None:
    setting = SETTINGS["audio_lead"]
    assert (setting.variable, setting.flag) == ("DUOLOGUE_AUDIO_LEAD", "--audio-lead")


def test_what_can_be_chosen_is_told() -> None:
    assert SETTINGS["log_format"].choices == ("text", "json")
    assert SETTINGS["turn_policy"].choices == ("barge_in", "backchannel_aware")
    assert SETTINGS["port"].choices == ()
