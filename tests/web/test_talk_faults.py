"""`duologue talk` with bad servers, bad files and people who leave: one line, and its exit code."""

import argparse
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from duologue.realtime import client, client_link
from duologue.web import talk_command
from tests.patience import PATIENCE_S

QUESTION = Path(__file__).parent.parent / "data" / "question.wav"
CREATED = json.dumps({"type": "session.created", "session": {"id": "sess_1", "model": "m"}})
ALONE = """
import argparse, signal, sys
from duologue.realtime import client, client_link
from duologue.web import talk_command
signal.signal(signal.SIGINT, signal.default_int_handler)
client.CONNECT_S = client_link.CONNECT_S = 240.0
parser = argparse.ArgumentParser()
talk_command.add_parser(parser.add_subparsers())
args = parser.parse_args()
sys.exit(args.run(args))
"""
"""The command without all the others, which take long to import. A background job of a shell, in
which the suite may run, leaves Ctrl-C ignored to its children."""
Run = Callable[..., tuple[int, str, str]]


@contextmanager
def speaking(*texts: str, close: tuple[int, str] | None = None) -> Iterator[str]:
    """A server that says this whatever comes, and then closes or nothing more."""

    def talk(connection: ServerConnection) -> None:
        try:
            for text in texts:
                connection.send(text)
            if close is not None:
                connection.close(*close)
            for _ in connection:
                pass
        except ConnectionClosed:
            return

    with serve(talk, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host, port = server.socket.getsockname()
        yield f"http://{host}:{port}"
        server.shutdown()
    thread.join()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give it options; get its exit code and what it printed."""
    for module in (client, client_link):
        monkeypatch.setattr(module, "CONNECT_S", PATIENCE_S)

    def run_talk(*options: str) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser()
        talk_command.add_parser(parser.add_subparsers())
        args = parser.parse_args(["talk", "--transport", "websocket", "--mute", *options])
        code = args.run(args)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run_talk


@contextmanager
def talking(url: str) -> Iterator[subprocess.Popen[str]]:
    """The command, whose standard input stays open."""
    options = ("--mute", "--text", "--transport", "websocket")
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE, "talk", url, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_server_that_closes_is_told_of_in_a_line(run: Run) -> None:
    with speaking(CREATED, close=(1011, "it failed")) as url:
        code, _, told = run(url, "--file", str(QUESTION))
    assert code == 1
    assert told == "duologue talk: the server closed the connection (1011): it failed\n"


def test_garbage_is_told_of_in_a_line(run: Run) -> None:
    with speaking(CREATED, "<html>") as url:
        code, _, told = run(url, "--file", str(QUESTION))
    assert (code, told) == (1, "duologue talk: the server sent something that is no event\n")


def test_a_server_that_does_not_answer_a_recording_is_told_of(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(talk_command, "AFTERWARDS_S", 0.1)
    short = tmp_path / "short.wav"
    short.write_bytes(wav(480))
    with speaking(CREATED, '{"type": "weather.changed"}') as url:
        code, _, told = run(url, "--file", str(short))
    assert (code, told) == (1, "duologue talk: no answer came within 0.1 s\n")


def wav(samples: int) -> bytes:
    size = (2 * samples).to_bytes(4, "little")
    rate = (24_000).to_bytes(4, "little") + (48_000).to_bytes(4, "little")
    form = b"fmt \x10\0\0\0\x01\0\x01\0" + rate + b"\x02\0\x10\0"
    return (
        b"RIFF"
        + (36 + 2 * samples).to_bytes(4, "little")
        + b"WAVE"
        + form
        + b"data"
        + size
        + (bytes(2 * samples))
    )


@pytest.mark.parametrize("name", ["none.wav", "folder", "text.wav"])
def test_a_file_that_can_not_be_read_is_told_of_in_a_line(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.wav").write_text("not a wav")
    code, said, told = run("127.0.0.1:9", "--file", str(tmp_path / name))
    assert (code, said) == (1, "")
    assert told.startswith("duologue talk: ") and name in told and told.count("\n") == 1


@pytest.mark.parametrize("out", ["none/answer.wav", "folder"])
def test_a_file_that_can_not_be_written_is_told_of_in_a_line(
    run: Run, tmp_path: Path, out: str
) -> None:
    (tmp_path / "folder").mkdir()
    options = ("--file", str(QUESTION), "--out", str(tmp_path / out))
    code, said, told = run("127.0.0.1:9", *options)
    assert (code, said) == (1, "")
    assert told.startswith("duologue talk: ") and out in told and told.count("\n") == 1


def test_a_disk_that_is_full_is_told_of_in_a_line(run: Run) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    done = json.dumps({"type": "response.done", "response": {"id": "r", "status": "completed"}})
    with speaking(CREATED, done) as url:
        code, _, told = run(url, "--file", str(QUESTION), "--out", str(full))
    assert (code, told) == (1, "duologue talk: /dev/full: No space left on device\n")


def test_an_end_is_told_though_nothing_is_typed() -> None:
    with speaking(CREATED, close=(1012, "")) as url, talking(url) as process:
        assert process.wait() == 1
        assert process.stderr is not None
        told = process.stderr.read()
    assert told == "duologue talk: the server closed the connection (1012)\n"


def test_ctrl_c_ends_a_conversation_though_nothing_is_typed() -> None:
    with speaking(CREATED) as url, talking(url) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "-- m over websocket\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
        assert process.stderr.read() == ""


def test_ctrl_c_before_there_is_a_conversation_has_its_own_exit_code() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with talking(f"127.0.0.1:{server.getsockname()[1]}") as process:
            connection, _ = server.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                assert process.wait() == 130
            assert process.stderr is not None
            assert process.stderr.read() == ""


def test_what_is_typed_and_not_answered_is_told_of(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed = tmp_path / "typed"
    typed.write_text("hello\n")
    monkeypatch.setattr(talk_command, "ANSWER_S", 0.1)
    with typed.open() as stdin:
        monkeypatch.setattr(talk_command, "STDIN", stdin.fileno())
        with speaking(CREATED) as url:
            code, _, told = run(url, "--text")
    assert code == 1
    assert told == "duologue talk: no answer: the server has said nothing for 0.1 s\n"
