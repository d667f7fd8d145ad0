import anyio
import pytest

from duologue.engines.engine import ResponseRequest, Usage
from duologue.engines.language import (
    Began,
    CallDelta,
    CallEnded,
    CallStarted,
    Finished,
    Generated,
    LanguageError,
    TextPiece,
)
from duologue.engines.llama_output import Failed, Item, Pieces

pytestmark = pytest.mark.anyio

END = Finished("completed", Usage(output_tokens=9))


async def read(
    *items: Item, offered: tuple[str, ...] = (), parallel: bool = True
) -> list[Generated]:
    send, receive = anyio.create_memory_object_stream[Item](100)
    request = ResponseRequest(instructions="", messages=(), parallel_tool_calls=parallel)
    pieces: list[Generated] = []
    with send, receive:
        for item in items:
            send.send_nowait(item)
        send.close()
        async for piece in Pieces(receive, offered, request):
            pieces.append(piece)
            if isinstance(piece, Finished):
                break
    return pieces


async def test_text_passes() -> None:
    began = Began(5, 3)
    assert await read(began, "a", " b", END) == [began, TextPiece("a"), TextPiece(" b"), END]


async def test_a_stream_that_ends_is_over() -> None:
    assert await read("a") == [TextPiece("a")]


async def test_a_failure_is_raised_behind_what_came_before() -> None:
    with pytest.raises(LanguageError, match="broken"):
        await read("a", Failed(LanguageError.of("engine_error", "broken")))


async def test_a_call_is_told_apart_from_speech() -> None:
    text = '{"name": "look", "arguments": {"at": "me"}}'
    pieces = await read("Let me see. ", *text, END, offered=("look",))
    assert pieces[0] == TextPiece("Let me see. ")
    calls = [piece for piece in pieces if isinstance(piece, CallStarted | CallEnded)]
    assert [type(piece) for piece in calls] == [CallStarted, CallEnded]
    assert isinstance(calls[1], CallEnded)
    assert calls[0].call_id == calls[1].call_id
    deltas = "".join(piece.delta for piece in pieces if isinstance(piece, CallDelta))
    assert deltas == calls[1].arguments == '{"at": "me"}'


async def test_a_call_of_something_that_was_not_offered_is_neither_made_nor_said() -> None:
    text = '{"name": "explode", "arguments": {"at": "me"}}'
    pieces = await read(text, END, offered=("look",))
    assert pieces == [END]


async def test_a_call_that_breaks_off_still_ends() -> None:
    pieces = await read('{"name": "look", "arguments": {"at": "m', END, offered=("look",))
    assert [type(piece) for piece in pieces if not isinstance(piece, CallDelta)] == [
        CallStarted,
        CallEnded,
        Finished,
    ]


async def test_where_one_call_is_wanted_the_answer_ends_with_it() -> None:
    text = '{"name": "look", "arguments": {}}\n{"name": "look", "arguments": {}}'
    pieces = await read(Began(7, 2), text, END, offered=("look",), parallel=False)
    assert sum(isinstance(piece, CallEnded) for piece in pieces) == 1
    assert pieces[-1] == Finished(
        "completed", Usage(input_tokens=7, cached_tokens=2, output_tokens=1)
    )
    both = await read(text, END, offered=("look",))
    assert sum(isinstance(piece, CallEnded) for piece in both) == 2
