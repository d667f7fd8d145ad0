"""How the process logs."""

import json
import logging
from collections.abc import Iterator

import pytest
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser
from websockets.server import ServerProtocol

from duologue.web import logs


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_has_the_level_and_the_logger(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    logging.getLogger("duologue.test").info("hello %s", "there")
    line = capsys.readouterr().err
    assert "INFO" in line
    assert line.endswith("duologue.test: hello there\n")


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    try:
        raise ValueError("oh\nno")
    except ValueError:
        logging.getLogger("duologue.test").exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == (
        "error",
        "duologue.test",
        "failed",
    )
    assert "ValueError: oh\nno" in entry["traceback"]
    assert entry["time"].endswith("+00:00")


def test_less_serious_messages_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning", "text")
    logging.getLogger("duologue.test").info("nothing")
    logs.configure("info", "text")
    logging.getLogger("uvicorn.error").info("chatter")
    assert capsys.readouterr().err == ""


def test_a_clients_malformed_body_is_not_worth_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    parser = MultipartParser(b"edge")
    with pytest.raises(MultipartParseError):
        parser.write(b"not a multipart body")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["authorization", "Api-Key", "sec-websocket-protocol", "cookie"])
def test_what_clients_prove_themselves_with_is_in_no_line(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    logs.configure("debug", "text")
    protocol = ServerProtocol(logger=logging.getLogger("duologue.test"))
    protocol.receive_data(f"GET / HTTP/1.1\r\nHost: a\r\n{name}: sesame\r\n\r\n".encode())
    said = capsys.readouterr().err
    assert "host: a" in said.lower()
    assert f"{name.lower()}: (left out)" in said.lower()
    assert "sesame" not in said
