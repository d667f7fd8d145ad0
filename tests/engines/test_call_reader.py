from duologue.engines.call_reader import CallReader
from duologue.engines.language import CallDelta, CallEnded, CallStarted, TextPiece

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def test_text_is_passed_on() -> None:
    reader = CallReader((), parallel=True)
    assert reader.push("Hello.") == [TextPiece("Hello.")]
    assert reader.finish() == []
    assert not reader.over


def test_a_call_is_told_apart_from_what_is_said() -> None:
    reader = CallReader(("weather",), parallel=True)
    started, delta, ended = reader.push(CALL)
    assert isinstance(started, CallStarted)
    assert started.name == "weather"
    assert isinstance(delta, CallDelta)
    assert ended == CallEnded(started.call_id, delta.delta)
    assert not reader.over


def test_one_call_is_enough_where_only_one_is_wanted() -> None:
    reader = CallReader(("weather",), parallel=False)
    pieces = reader.push(CALL + CALL)
    assert sum(isinstance(piece, CallEnded) for piece in pieces) == 1
    assert reader.over
    assert reader.push("more") == []


def test_a_call_of_something_else_is_neither_said_nor_called() -> None:
    reader = CallReader(("time",), parallel=True)
    assert reader.push(CALL) + reader.finish() == []
