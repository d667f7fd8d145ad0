"""What is worked out of a graph once: who runs behind whom, and that it is worked out once."""

from duologue.engines.pipeline.flow_shape import flow_shape
from duologue.engines.pipeline.stage_graph import ASR, CASCADE, LLM, TTS, Edge, Graph, Kind, Stage


def graph(*edges: Edge) -> Graph:
    kinds = (Kind.TEXT, Kind.TOKENS)
    names = sorted({name for edge in edges for name in (edge.source, edge.target)})
    return Graph("g", tuple(Stage(name=n, task="", takes=kinds, gives=kinds) for n in names), edges)


def edge(source: str, target: str, streamed: bool, kind: Kind = Kind.TEXT) -> Edge:
    return Edge(source=source, target=target, kind=kind, streamed=streamed)


def lines(of: Graph) -> list[str]:
    return ["".join(name for name, _ in line) for line in flow_shape(of, "", False).lines]


def test_a_model_that_waits_for_all_words_runs_behind_the_recogniser() -> None:
    spoken = flow_shape(CASCADE, TTS, False)
    assert spoken.lines == (((ASR, ""), (LLM, "")), ((TTS, ""),))
    assert flow_shape(CASCADE, LLM, False).lines == (((ASR, ""), (LLM, "")),)


def test_what_is_streamed_to_is_not_behind_its_source() -> None:
    assert lines(graph(edge("a", "b", True), edge("b", "c", True))) == ["a", "b", "c"]


def test_a_line_is_as_long_as_nothing_is_streamed() -> None:
    assert lines(graph(edge("a", "b", False), edge("b", "c", False))) == ["abc"]


def test_of_two_that_wait_for_the_same_one_only_one_is_behind_it() -> None:
    assert lines(graph(edge("a", "b", False), edge("a", "c", False))) == ["ab", "c"]


def test_what_waits_for_two_is_behind_neither() -> None:
    joined = graph(edge("a", "c", False), edge("b", "c", False))
    assert lines(joined) == ["a", "b", "c"]
    both_kinds = graph(edge("a", "b", False), edge("a", "b", True, Kind.TOKENS))
    assert lines(both_kinds) == ["a", "b"]


def test_a_shape_is_worked_out_once() -> None:
    assert flow_shape(CASCADE, LLM, False) is flow_shape(CASCADE, LLM, False)
    assert flow_shape(CASCADE, LLM, False) is not flow_shape(CASCADE, "", False)
