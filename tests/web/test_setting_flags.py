"""The flags of the command line."""

import argparse

import pytest

from duologue.web.setting_flags import add_flags
from duologue.web.setting_table import SETTINGS


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="duologue serve", allow_abbrev=False)
    add_flags(made)
    return made


def test_a_flag_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--prot", "1"])
    assert "--prot" in capsys.readouterr().err


def test_every_setting_is_explained_with_its_variable() -> None:
    text = " ".join(parser().format_help().split())
    for setting in SETTINGS.values():
        assert setting.flag in text
        assert setting.variable in text
        assert len(setting.about.help) > 10
