"""`duologue talk`: a conversation with a server, from a terminal."""

import argparse
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final, TextIO

import anyio
import anyio.abc
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from duologue.realtime.client import (
    AssistantText,
    ConnectError,
    Conversation,
    Disconnected,
    ErrorReceived,
    FileSource,
    Interrupted,
    Nowhere,
    ResponseCreated,
    ResponseDone,
    SessionCreated,
    Sink,
    SoundError,
    Source,
    SpeechStarted,
    UserTranscript,
    connect,
    file_sink,
)
from duologue.realtime.client_link import plain_group
from duologue.realtime.client_sound import Loudspeaker, Microphone

DEFAULT_URL: Final = "http://127.0.0.1:8765"
AFTERWARDS_S: Final = 30.0
"""How long an answer to a file is waited for."""

STDIN: Final = 0
LINES: Final = 16
"""Lines that wait to be sent; what is more waits where it comes from."""

ANSWER_S: Final = 60.0
"""How long a server may say nothing where an answer to text is due."""

INTERRUPTED: Final = 130
"""The exit code of Ctrl-C before there was a conversation; after, it is the way to end it."""

QUIET_S: Final = 1.0
"""Silence behind the last answer that is still kept in the file."""


class Both:
    """A sink for two: the loudspeaker and a file."""

    def __init__(self, sinks: list[Sink]) -> None:
        self._sinks = sinks
        self.loud_at = 0.0
        """When something was last heard, on the event loop's clock."""

    def write(self, pcm: bytes) -> None:
        if any(pcm):
            self.loud_at = anyio.current_time()
        for sink in self._sinks:
            sink.write(pcm)

    def flush(self) -> None:
        for sink in self._sinks:
            sink.flush()


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `talk` to the commands of a parser; its `run` is this module's."""
    talk = subparsers.add_parser(
        "talk",
        help="talk with a server from here",
        description="Talk with a server: by microphone and loudspeaker, with files, or in text. "
        "What both say is printed. End with Ctrl-C.",
    )
    talk.add_argument("url", nargs="?", default=DEFAULT_URL, help=f"default: {DEFAULT_URL}")
    talk.add_argument(
        "--key", default=os.environ.get("DUOLOGUE_KEY", ""), help="default: $DUOLOGUE_KEY"
    )
    talk.add_argument(
        "--transport",
        choices=("auto", "webrtc", "websocket"),
        default="auto",
        help="auto: WebRTC, or a WebSocket where there is no way for it",
    )
    talk.add_argument("--model", default="")
    talk.add_argument("--voice")
    talk.add_argument("--instructions")
    talk.add_argument(
        "--file", type=Path, metavar="WAV", help="say this instead of what the microphone hears"
    )
    talk.add_argument("--out", type=Path, metavar="WAV", help="keep what the server says")
    talk.add_argument("--text", action="store_true", help="type instead of speaking")
    talk.add_argument("--mute", action="store_true", help="play nothing")
    talk.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run `duologue talk`; return the exit code."""
    transcript = Transcript(sys.stdout)
    try:
        anyio.run(_talk, args, transcript)
    except (ConnectError, Disconnected, SoundError) as error:
        sys.stderr.write(f"duologue talk: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        return 0 if transcript.begun else INTERRUPTED
    return 0


async def _sinks(args: argparse.Namespace, stack: AsyncExitStack) -> list[Sink]:
    sinks: list[Sink] = []
    if args.out is not None:
        sinks.append(await stack.enter_async_context(file_sink(args.out)))
    if not args.mute and not (args.file is not None and args.out is not None):
        loudspeaker = await anyio.to_thread.run_sync(Loudspeaker)
        stack.callback(loudspeaker.close)
        sinks.append(loudspeaker)
    return sinks or [Nowhere()]


async def _source(args: argparse.Namespace) -> Source | None:
    if args.text:
        return None
    if args.file is not None:
        return await FileSource.open(args.file, AFTERWARDS_S)
    return await anyio.to_thread.run_sync(Microphone)


async def _talk(args: argparse.Namespace, transcript: "Transcript") -> None:
    async with AsyncExitStack() as stack:
        source = await _source(args)
        sink = Both(await _sinks(args, stack))
        conversation = await stack.enter_async_context(
            connect(
                args.url,
                transport=args.transport,
                key=args.key,
                model=args.model,
                instructions=args.instructions,
                voice=args.voice,
                session={"audio": {"input": {"transcription": {"model": "whisper-1"}}}},
                sink=sink,
            )
        )
        said = None if source is None else conversation.speak(source)
        async with plain_group() as group:
            if args.text:
                group.start_soon(_type, conversation, transcript, group)
            if args.file is not None and said is not None:
                group.start_soon(_leave, said, transcript, sink, group)
            async for event in conversation:
                transcript.tell(event, conversation.transport)
            group.cancel_scope.cancel()
            raise Disconnected(conversation.ended)


async def _type(
    conversation: Conversation, transcript: "Transcript", group: anyio.abc.TaskGroup
) -> None:
    """Send every line, each when the one before was answered; leave at the end of the input."""
    asked = 0
    async for line in _lines():
        if not line.strip():
            continue
        await conversation.say(line.strip())
        asked += 1
        while transcript.answers < asked:
            with anyio.move_on_after(ANSWER_S) as waiting:
                await transcript.wait()
            if waiting.cancelled_caught:
                raise Disconnected(f"no answer: the server has said nothing for {ANSWER_S:g} s")
    group.cancel_scope.cancel()


async def _lines() -> AsyncIterator[str]:
    """What is typed. A thread waits for it that nobody waits for: an end needs no Enter."""
    give, take = anyio.create_memory_object_stream[str](LINES)
    token = anyio.lowlevel.current_token()

    def read() -> None:
        # RuntimeError: the loop is over.
        with suppress(OSError, RuntimeError, anyio.BrokenResourceError):
            # Not through sys.stdin, whose lock an interpreter that ends would need.
            with open(STDIN, encoding="utf-8", errors="replace", closefd=False) as stdin:
                for line in stdin:
                    anyio.from_thread.run(give.send, line, token=token)
        with suppress(RuntimeError):
            anyio.from_thread.run_sync(give.close, token=token)

    threading.Thread(target=read, name="standard input", daemon=True).start()
    with take:
        async for line in take:
            yield line


async def _leave(
    said: anyio.Event, transcript: "Transcript", sink: Both, group: anyio.abc.TaskGroup
) -> None:
    """End when the file was answered and the answer was heard, or when no answer comes."""
    while not said.is_set():
        await anyio.sleep(0.1)
        quiet = anyio.current_time() - max(sink.loud_at, transcript.changed_at)
        if transcript.answers and not transcript.answering and quiet > QUIET_S:
            break
    if not transcript.answers:
        raise Disconnected(f"no answer came within {AFTERWARDS_S:g} s")
    group.cancel_scope.cancel()


class Transcript:
    """Prints who says what."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._open = ""
        self.begun = False
        self.answers = 0
        self.answering = False
        self.changed_at = 0.0
        self._news = anyio.Event()

    async def wait(self) -> None:
        """Return when something more was told."""
        await self._news.wait()

    def tell(self, event: object, transport: str) -> None:
        self.changed_at = anyio.current_time()
        self._news.set()
        self._news = anyio.Event()
        match event:
            case SessionCreated(model=model):
                self.begun = True
                self._line(f"-- {model or 'the server'} over {transport}")
            case UserTranscript(text=text, final=True):
                self._line(f"you: {text.strip()}")
            case ResponseCreated():
                self.answering = True
            case AssistantText(item_id=item_id, text=text, final=False):
                if self._open != item_id:
                    self._line("")
                    self._out.write("it:  ")
                    self._open, text = item_id, text.lstrip()
                self._out.write(text)
                self._out.flush()
            case Interrupted(audio_end_ms=heard):
                self._line(f"     [interrupted after {heard / 1000:.1f} s]")
            case ResponseDone(status=status, reason=reason):
                self.answering = False
                self.answers += status != "cancelled"
                self._line(f"     [failed: {reason}]" if status == "failed" else "")
            case ErrorReceived(code=code, message=message):
                self._line(f"-- {code}: {message}")
            case SpeechStarted():
                self._line("")
            case _:
                pass

    def _line(self, text: str) -> None:
        if self._open:
            self._out.write("\n")
            self._open = ""
        if text:
            self._out.write(text + "\n")
        self._out.flush()
