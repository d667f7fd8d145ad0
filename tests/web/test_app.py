"""How the application is put together."""

from pathlib import Path

import msgspec
import pytest

from duologue.engines.script import ScriptedOptions
from duologue.web.app import create_app, scripted_options, worker_config
from duologue.web.settings import Settings, SettingsError


def test_off_loopback_there_is_no_application_without_a_key() -> None:
    with pytest.raises(SettingsError, match="api_keys"):
        create_app(Settings(host="0.0.0.0", engine="scripted"))


def test_the_script_may_come_from_a_file(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"model": "mine", "replies": [{"clauses": [{"text": "Hi.", "ms": 300}]}]}')
    options = scripted_options(Settings(engine="scripted", script=script, slots=3))
    assert (options.model, options.capacity) == ("mine", 3)
    assert options.replies[0].clauses[0].text == "Hi."


@pytest.mark.parametrize("content", [None, "{", '{"replies": 7}', '{"replies": []}'])
def test_a_script_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    script = tmp_path / "script.json"
    if content is not None:
        script.write_text(content)
    with pytest.raises(SettingsError, match=r"script\.json"):
        scripted_options(Settings(engine="scripted", script=script))


def test_the_worker_is_told_what_to_play() -> None:
    config = worker_config(Settings(engine="scripted", slots=2, log_level="debug"))
    assert (config.backend, config.log_level) == ("scripted", "debug")
    assert msgspec.msgpack.decode(config.options, type=ScriptedOptions).capacity == 2
