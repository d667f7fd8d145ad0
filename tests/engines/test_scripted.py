import anyio
import msgspec
import pytest

from duologue.engines.engine import (
    Command,
    Message,
    OpenSession,
    Output,
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechGenerated,
    TextPart,
)
from duologue.engines.pulse import Pulse
from duologue.engines.script import Clause, Reply, ScriptedOptions
from duologue.engines.scripted import ScriptedBackend, create_backend
from duologue.engines.stamps import read_stamp
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


def respond(session: str) -> Respond:
    request = ResponseRequest(instructions="", messages=(Message("user", (TextPart("hello"),)),))
    return Respond(1, request, session=session)


async def test_speech_is_never_early() -> None:
    reply = Reply(clauses=(Clause("Good day.", 60),), first_ms=3)
    backend = ScriptedBackend(ScriptedOptions(replies=(reply,), chunk_ms=10))
    early: list[SpeechGenerated] = []
    ended = anyio.Event()

    def emit(output: Output) -> None:
        if isinstance(output, SpeechGenerated):
            stamp = read_stamp(output.pcm)
            assert stamp is not None
            if stamp.due_ns > backend._clock():
                early.append(output)
        elif isinstance(output, ResponseEnded):
            ended.set()

    send, receive = anyio.create_memory_object_stream[Command](8)
    async with receive, anyio.create_task_group() as group:
        async with send:
            await group.start(backend.run, receive, emit)
            await send.send(OpenSession(session="s"))
            await send.send(respond("s"))
            with anyio.fail_after(PATIENCE_S):
                await ended.wait()
    assert early == []


async def test_it_ends_when_the_commands_end() -> None:
    send, receive = anyio.create_memory_object_stream[Command](8)
    with anyio.fail_after(PATIENCE_S):
        async with receive, anyio.create_task_group() as group:
            await group.start(ScriptedBackend().run, receive, lambda output: None)
            send.close()


async def test_what_is_due_at_once_comes_before_what_is_due_later() -> None:
    replies = (
        Reply(clauses=(Clause("late", 10),), match="slow", first_ms=150),
        Reply(clauses=(Clause("soon", 10),), first_ms=0),
    )
    backend = ScriptedBackend(ScriptedOptions(replies=replies))
    ended: list[str] = []
    both = anyio.Event()

    def emit(output: Output) -> None:
        if isinstance(output, ResponseEnded):
            ended.append(output.session)
            if len(ended) == 2:
                both.set()

    send, receive = anyio.create_memory_object_stream[Command](8)
    async with receive, anyio.create_task_group() as group:
        async with send:
            await group.start(backend.run, receive, emit)
            for session in ("slow", "quick"):
                await send.send(OpenSession(session=session))
            slow = respond("slow")
            request = msgspec.structs.replace(
                slow.request, messages=(Message("user", (TextPart("slow"),)),)
            )
            await send.send(msgspec.structs.replace(slow, request=request))
            await send.send(respond("quick"))
            with anyio.fail_after(PATIENCE_S):
                await both.wait()
    assert ended == ["quick", "slow"]


async def test_it_refuses_to_start_when_the_script_says_so() -> None:
    backend = ScriptedBackend(ScriptedOptions(start_failure="no voice today"))
    send, receive = anyio.create_memory_object_stream[Command](8)
    with send, receive, pytest.raises(ExceptionGroup) as raised:
        async with anyio.create_task_group() as group:
            await group.start(backend.run, receive, lambda output: None)
    assert raised.group_contains(RuntimeError, match="no voice today")


def test_it_can_not_speak_before_it_runs() -> None:
    backend = ScriptedBackend(ScriptedOptions(context_tokens=0))
    backend.performance.take(OpenSession(session="s"), 0)
    with pytest.raises(RuntimeError, match="not running"):
        backend.performance.take(respond("s"), 0)


def test_options_come_as_msgpack() -> None:
    options = ScriptedOptions(model="other", voices=("a", "b"), capacity=3)
    backend = create_backend(msgspec.msgpack.encode(options), Pulse())
    assert (backend.spec.model, backend.spec.default_voice) == ("other", "a")
    assert backend.capacity == 3


def test_options_may_be_left_out() -> None:
    assert create_backend(b"\x80", Pulse()).capacity == ScriptedOptions().capacity


def test_options_that_are_not_understood_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        create_backend(msgspec.msgpack.encode({"capacity": "many"}), Pulse())
