"""The `duologue` command as a whole."""

import pytest

from duologue.web.__main__ import main


def test_it_says_what_it_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert "serve" in said
    assert "models" in said


@pytest.mark.parametrize("arguments", [[], ["sing"], ["serve", "--prot", "1"]])
def test_what_it_does_not_know_ends_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: duologue" in capsys.readouterr().err


def test_a_command_runs_and_gives_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    assert "silero-vad" in capsys.readouterr().out


def test_a_setting_that_is_wrong_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "70000"]) == 1
    assert "--port must be at most 65535" in capsys.readouterr().err
