"""What goes to which stage, and how it ends: graphs, orders and failures at random, a clock moved
by hand."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from duologue.engines.engine import EngineFailure
from duologue.engines.pipeline.flow import (
    Chunk,
    Close,
    Deliver,
    Effect,
    Flow,
    Hand,
    Outcome,
    Stop,
)
from duologue.engines.pipeline.flow_shape import Node
from duologue.engines.pipeline.stage_graph import (
    ASR,
    CASCADE,
    LLM,
    TTS,
    Companions,
    Edge,
    Graph,
    Kind,
    Stage,
)

A: Node = (ASR, "")
L: Node = (LLM, "")
T: Node = (TTS, "")


def chain(**fields: object) -> Graph:
    """tokens -> speech, with the fields of the edge."""
    edge: dict[str, object] = {"source": "a", "target": "b", "kind": Kind.TOKENS} | fields
    return Graph(
        "chain",
        (
            Stage(name="a", task="", takes=(Kind.PROMPT,), gives=(Kind.TOKENS, Kind.TEXT)),
            Stage(name="b", task="", takes=(Kind.TOKENS,), gives=(Kind.SPEECH,)),
        ),
        (Edge(**edge),),  # type: ignore[arg-type]
    )


GUIDED = Graph(
    "guided",
    (
        Stage(name="encode", task="", takes=(Kind.PROMPT,), gives=(Kind.TOKENS, Kind.TEXT)),
        Stage(name="denoise", task="", takes=(Kind.TOKENS,), gives=(Kind.LATENTS,)),
        Stage(name="decode", task="", takes=(Kind.LATENTS,), gives=(Kind.PICTURE,)),
    ),
    (
        Edge(source="encode", target="denoise", kind=Kind.TOKENS),
        Edge(source="denoise", target="decode", kind=Kind.LATENTS),
    ),
    Companions(join="denoise"),
)


def kinds(effects: list[Effect]) -> list[type[Effect]]:
    return [type(effect) for effect in effects]


def handed(effects: list[Effect]) -> list[tuple[object, ...]]:
    return [effect.chunk.items for effect in effects if isinstance(effect, Hand)]


def begun(flow: Flow) -> Flow:
    flow.begin({"": "request"}, 0.0)
    flow.take_effects()
    return flow


# -- a cascade ------------------------------------------------------------------------------


def test_a_clause_reaches_the_voice_before_the_answer_is_complete() -> None:
    flow = Flow(CASCADE)
    flow.begin({"": "request"}, 0.0)
    assert flow.take_effects() == [Hand(A, Chunk(Kind.TURN, ("request",))), Close(A)]
    flow.put(A, Kind.PROMPT, "words", 0.0)
    assert flow.take_effects() == []  # whole: only when the recogniser has ended
    flow.end(A, 0.0)
    assert flow.take_effects() == [Hand(L, Chunk(Kind.PROMPT, ("words",))), Close(L)]
    flow.put(L, Kind.CLAUSE, "one", 0.0)
    assert flow.take_effects() == [Hand(T, Chunk(Kind.CLAUSE, ("one",)))]
    flow.put(L, Kind.CALL, "call", 0.0)
    assert flow.take_effects() == [Deliver(LLM, Kind.CALL, "call")]
    flow.end(L, 0.0)
    flow.put(T, Kind.SPEECH, "sound", 0.0)
    flow.took(T, 0.0)
    assert flow.take_effects() == [Close(T), Deliver(TTS, Kind.SPEECH, "sound")]
    flow.end(T, 0.0)
    assert flow.take_effects() == [Outcome("completed")]


def test_a_request_may_end_at_an_earlier_stage() -> None:
    flow = begun(Flow(CASCADE, final=LLM))
    assert flow.nodes == (A, L)
    flow.end(A, 0.0)
    flow.put(L, Kind.TEXT, "word", 0.0)
    assert Deliver(LLM, Kind.TEXT, "word") in flow.take_effects()
    flow.end(L, 0.0)
    assert flow.take_effects() == [Outcome("completed")]


def test_the_source_waits_when_the_window_is_full_and_goes_on_when_it_is_not() -> None:
    flow = begun(Flow(CASCADE))
    flow.end(A, 0.0)
    for number in range(5):  # one in hand, four in the window
        assert flow.room(L, Kind.CLAUSE)
        flow.put(L, Kind.CLAUSE, number, 0.0)
    assert not flow.room(L, Kind.CLAUSE)
    assert flow.room(L, Kind.CALL)
    flow.took(T, 0.0)
    assert flow.room(L, Kind.CLAUSE)


def test_a_stage_that_is_held_gets_nothing_until_it_is_let_go() -> None:
    flow = begun(Flow(CASCADE))
    flow.hold(T, True, 0.0)
    flow.put(L, Kind.CLAUSE, "one", 0.0)
    assert handed(flow.take_effects()) == []
    flow.hold(T, False, 0.0)
    assert handed(flow.take_effects()) == [("one",)]


def test_what_was_put_is_settled_when_it_has_been_worked_off() -> None:
    flow = begun(Flow(CASCADE))
    assert flow.settle(L, 0.0)
    flow.put(L, Kind.CLAUSE, "one", 0.0)
    flow.put(L, Kind.CLAUSE, "two", 0.0)
    assert not flow.settle(L, 0.0)
    flow.took(T, 0.0)
    assert not flow.settle(L, 0.0)
    flow.took(T, 0.0)
    assert flow.settle(L, 0.0)


# -- chunks ---------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 5), max_size=40),
    first=st.integers(1, 4),
    size=st.integers(1, 9),
    streamed=st.booleans(),
)
def test_chunks_are_all_that_was_put_in_order_and_of_the_sizes_asked_for(
    sizes: list[int], first: int, size: int, streamed: bool
) -> None:
    flow = begun(Flow(chain(first=first, size=size, streamed=streamed, window=1000)))
    for number, one in enumerate(sizes):
        flow.put(("a", ""), Kind.TOKENS, (number, one), 0.0, one)
    flow.end(("a", ""), 0.0)
    chunks: list[tuple[object, ...]] = []
    while got := handed(flow.take_effects()):
        chunks += got
        flow.took(("b", ""), 0.0)
    assert [item for chunk in chunks for item in chunk] == list(enumerate(sizes))
    if not streamed:
        assert len(chunks) <= 1
        return
    for at, chunk in enumerate(chunks[:-1]):
        weight = sum(item[1] for item in chunk)  # type: ignore[index]
        wanted = size if at else first
        assert weight >= wanted
        assert weight - chunk[-1][1] < wanted  # type: ignore[index]


def test_what_is_gathered_is_let_go_of_when_it_has_to_settle() -> None:
    flow = begun(Flow(chain(first=10)))
    flow.put(("a", ""), Kind.TOKENS, 1, 0.0)
    assert handed(flow.take_effects()) == []
    assert not flow.settle(("a", ""), 0.0)
    assert handed(flow.take_effects()) == [(1,)]


# -- the fence ------------------------------------------------------------------------------


def test_a_stage_that_gives_more_after_its_terminal_chunk_fails_the_request() -> None:
    flow = begun(Flow(CASCADE))
    flow.end(A, 0.0)
    flow.put(L, Kind.CLAUSE, "one", 0.0)
    flow.end(L, 0.0)
    flow.take_effects()
    flow.put(L, Kind.CLAUSE, "two", 0.0)
    effects = flow.take_effects()
    assert flow.late == 1
    assert kinds(effects) == [Stop, Outcome]
    assert flow.outcome is not None and flow.outcome.failure is not None
    assert flow.outcome.failure.message == (
        "The stage llm gave something after its terminal chunk."
    )


def test_two_terminal_chunks_are_one_too_many() -> None:
    flow = begun(Flow(CASCADE))
    flow.end(A, 0.0)
    flow.end(A, 0.0)
    assert flow.outcome is not None and flow.outcome.reason == "failed"


def test_what_comes_late_for_a_request_that_has_ended_is_counted_and_changes_nothing() -> None:
    flow = begun(Flow(CASCADE, final=LLM))
    flow.end(A, 0.0)
    flow.end(L, 0.0)
    flow.take_effects()
    flow.put(L, Kind.TEXT, "more", 0.0)
    assert flow.late == 1
    assert flow.take_effects() == []
    assert flow.outcome == Outcome("completed")


def test_what_a_cancelled_stage_still_makes_is_no_fault() -> None:
    flow = begun(Flow(CASCADE))
    flow.cancel()
    assert flow.take_effects() == [Stop(A), Stop(L), Stop(T), Outcome("cancelled")]
    flow.put(A, Kind.PROMPT, "words", 0.0)
    flow.end(A, 0.0)
    assert flow.late == 0
    assert flow.take_effects() == []


@pytest.mark.parametrize(
    ("node", "kind", "words"),
    [(A, Kind.SPEECH, "The stage asr does not give speech.")],
)
def test_a_kind_that_a_stage_does_not_give_fails_the_request(
    node: Node, kind: Kind, words: str
) -> None:
    flow = begun(Flow(CASCADE))
    flow.put(node, kind, "x", 0.0)
    assert flow.outcome == Outcome("failed", EngineFailure("engine_error", words))


def test_a_stage_can_not_take_what_it_was_not_given() -> None:
    flow = begun(Flow(CASCADE))
    flow.took(T, 0.0)
    assert flow.outcome is not None and flow.outcome.reason == "failed"


def test_the_first_reason_counts() -> None:
    flow = begun(Flow(CASCADE))
    flow.fail("first")
    flow.fail("second")
    flow.cancel()
    assert flow.outcome == Outcome("failed", EngineFailure("engine_error", "first"))


# -- companions -----------------------------------------------------------------------------


def guided() -> Flow:
    flow = Flow(GUIDED, guided=True)
    flow.begin({"positive": "a cat", "negative": ""}, 0.0)
    return flow


def test_a_guided_request_runs_each_branch_and_joins_them_chunk_by_chunk() -> None:
    flow = guided()
    plus, minus, join = ("encode", "positive"), ("encode", "negative"), ("denoise", "")
    assert flow.nodes == (plus, minus, join, ("decode", ""))
    assert handed(flow.take_effects()) == [("a cat",), ("",)]
    flow.put(plus, Kind.TOKENS, "+1", 0.0)
    flow.put(plus, Kind.TOKENS, "+2", 0.0)
    assert handed(flow.take_effects()) == []
    flow.put(minus, Kind.TOKENS, "-1", 0.0)
    (hand,) = flow.take_effects()
    assert hand == Hand(
        join, Chunk(Kind.TOKENS, ("+1",), {"positive": ("+1",), "negative": ("-1",)})
    )
    flow.end(plus, 0.0)
    flow.put(minus, Kind.TOKENS, "-2", 0.0)
    flow.end(minus, 0.0)
    flow.took(join, 0.0)
    assert kinds(flow.take_effects()) == [Hand, Close]


def test_only_the_request_itself_speaks_to_the_client() -> None:
    flow = guided()
    flow.take_effects()
    flow.put(("encode", "negative"), Kind.TEXT, "hidden", 0.0)
    assert flow.take_effects() == []
    flow.put(("encode", "positive"), Kind.TEXT, "shown", 0.0)
    assert flow.take_effects() == [Deliver("encode", Kind.TEXT, "shown")]


def test_branches_that_are_not_equally_long_fail_the_request() -> None:
    flow = guided()
    flow.put(("encode", "positive"), Kind.TOKENS, "+1", 0.0)
    flow.end(("encode", "negative"), 0.0)
    assert flow.outcome is not None and flow.outcome.failure is not None
    assert "not equally long" in flow.outcome.failure.message


def test_branches_of_which_one_ends_within_a_chunk_fail_the_request() -> None:
    whole = replace(GUIDED.edges[0], first=2, size=2)
    flow = Flow(
        Graph("guided", GUIDED.stages, (whole, GUIDED.edges[1]), GUIDED.companions), guided=True
    )
    flow.begin({"positive": "a cat", "negative": ""}, 0.0)
    flow.take_effects()
    flow.put(("encode", "positive"), Kind.TOKENS, "+1", 0.0)
    flow.end(("encode", "positive"), 0.0)
    assert flow.outcome is None
    flow.put(("encode", "negative"), Kind.TOKENS, "-1", 0.0)
    flow.put(("encode", "negative"), Kind.TOKENS, "-2", 0.0)
    assert flow.outcome is not None and flow.outcome.failure is not None
    assert "not equally long" in flow.outcome.failure.message
    assert handed(flow.take_effects()) == []


def test_a_failure_or_cancel_stops_the_companion_too() -> None:
    flow = guided()
    flow.take_effects()
    flow.cancel()
    assert [effect.node for effect in flow.take_effects() if isinstance(effect, Stop)] == [
        *flow.nodes
    ]


def test_the_same_graph_serves_requests_without_a_companion() -> None:
    flow = begun(Flow(GUIDED))
    assert [node for node, _ in flow.nodes] == ["encode", "denoise", "decode"]
    flow.put(("encode", ""), Kind.TOKENS, "1", 0.0)
    assert handed(flow.take_effects()) == [("1",)]


def test_a_request_that_does_not_fit_the_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="has no branches"):
        Flow(CASCADE, guided=True)
    with pytest.raises(ValueError, match="has no stage 'x'"):
        Flow(CASCADE, final="x")


# -- time -----------------------------------------------------------------------------------


def test_a_stage_that_says_nothing_for_its_time_fails_the_request() -> None:
    flow = begun(Flow(CASCADE, answer_s={TTS: 2.0}))
    flow.end(A, 5.0)
    assert flow.next_deadline() is None
    flow.put(L, Kind.CLAUSE, "one", 5.0)
    assert flow.next_deadline() == 7.0
    flow.put(T, Kind.SPEECH, "some", 6.0)
    assert flow.next_deadline() == 8.0
    flow.handle_timer(7.9)
    assert flow.outcome is None
    flow.handle_timer(8.0)
    assert flow.outcome is not None and flow.outcome.failure is not None
    assert flow.outcome.failure.message == "The stage tts did not answer within 2 s."


def test_a_stage_has_no_deadline_while_it_has_nothing_in_hand() -> None:
    flow = begun(Flow(CASCADE, answer_s={TTS: 2.0}))
    flow.put(L, Kind.CLAUSE, "one", 0.0)
    flow.took(T, 1.0)
    assert flow.next_deadline() is None


def test_the_time_that_a_stage_waits_for_room_is_not_its_own() -> None:
    flow = begun(Flow(chain(window=1), answer_s={"a": 2.0}))
    a, b = ("a", ""), ("b", "")
    flow.put(a, Kind.TOKENS, 1, 0.0)
    assert flow.next_deadline() == 2.0
    flow.put(a, Kind.TOKENS, 2, 0.0)
    assert flow.next_deadline() is None  # full
    flow.took(b, 50.0)
    assert flow.next_deadline() == 52.0


# -- anything in any order ------------------------------------------------------------------


@dataclass
class Seen:
    handed: dict[Node, int] = field(default_factory=dict)
    closed: set[Node] = field(default_factory=set)
    delivered: list[object] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    items: dict[Node, list[object]] = field(default_factory=dict)


class AnyFlow(RuleBasedStateMachine):
    """Well-behaved stages in any order, with interruptions of every kind."""

    @initialize(
        window=st.integers(1, 3),
        first=st.integers(1, 2),
        size=st.integers(1, 3),
        guided=st.booleans(),
        limited=st.booleans(),
    )
    def begin(self, window: int, first: int, size: int, guided: bool, limited: bool) -> None:
        self.now = 0.0
        self.guided = guided
        graph = Graph(
            "any",
            GUIDED.stages,
            (
                Edge(
                    source="encode",
                    target="denoise",
                    kind=Kind.TOKENS,
                    window=window,
                    first=first,
                    size=size,
                ),
                Edge(source="denoise", target="decode", kind=Kind.LATENTS, window=window),
            ),
            GUIDED.companions,
        )
        self.window = window
        self.flow = Flow(graph, guided=guided, answer_s={"decode": 1.0} if limited else {})
        self.seen = Seen()
        self.in_hand: dict[Node, int] = {}
        self.ended: set[Node] = set()
        self.put_count: dict[Node, int] = {}
        self.put_decoded: list[object] = []
        branches = ("positive", "negative") if guided else ("",)
        self.flow.begin({branch: branch for branch in branches}, self.now)
        self.look()

    def look(self) -> None:
        for effect in self.flow.take_effects():
            assert not self.seen.outcomes, "nothing comes after the end"
            match effect:
                case Hand(node, chunk):
                    assert node not in self.seen.closed
                    assert node not in self.ended
                    self.in_hand[node] = self.in_hand.get(node, 0) + 1
                    assert self.in_hand[node] <= 1
                    self.seen.items.setdefault(node, []).extend(chunk.items)
                    if node == ("denoise", "") and self.guided:
                        assert set(chunk.branches) == {"positive", "negative"}
                        lengths = {len(items) for items in chunk.branches.values()}
                        assert len(lengths) == 1
                case Close(node):
                    assert node not in self.seen.closed
                    self.seen.closed.add(node)
                case Deliver(_, _, item):
                    self.seen.delivered.append(item)
                case Outcome():
                    self.seen.outcomes.append(effect)
                case Stop(node):
                    assert node not in self.ended

    @property
    def over(self) -> bool:
        return bool(self.seen.outcomes)

    @rule(data=st.data())
    def a_stage_gives(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.flow.nodes))
        kind = {"encode": Kind.TOKENS, "denoise": Kind.LATENTS, "decode": Kind.PICTURE}[node[0]]
        if self.over or node in self.ended or not self.flow.room(node, kind):
            return
        number = self.put_count.get(node, 0)
        self.put_count[node] = number + 1
        self.flow.put(node, kind, number, self.now)
        if node[0] == "decode":
            self.put_decoded.append(number)
        self.look()

    @rule(data=st.data())
    def a_stage_takes(self, data: st.DataObject) -> None:
        busy = [node for node, count in self.in_hand.items() if count and node not in self.ended]
        if self.over or not busy:
            return
        node = data.draw(st.sampled_from(busy))
        self.in_hand[node] -= 1
        self.flow.took(node, self.now)
        self.look()

    @rule(data=st.data())
    def a_stage_ends(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.flow.nodes))
        if self.over or node in self.ended:
            return
        if node not in self.seen.closed or self.in_hand.get(node):
            return  # a stage ends when it has worked everything off
        self.ended.add(node)
        self.flow.end(node, self.now)
        self.look()

    @rule(held=st.booleans(), data=st.data())
    def a_stage_is_held(self, held: bool, data: st.DataObject) -> None:
        self.flow.hold(data.draw(st.sampled_from(self.flow.nodes)), held, self.now)
        self.look()

    @rule(seconds=st.floats(0, 0.6))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        due = self.flow.next_deadline()
        self.flow.handle_timer(self.now)
        if due is not None and self.now >= due:
            assert self.flow.outcome is not None
        self.look()

    @rule()
    def it_is_cancelled_at_times(self) -> None:
        if sum(self.put_count.values()) > 12:
            self.flow.cancel()
            self.look()

    @invariant()
    def there_is_one_end_at_most(self) -> None:
        assert len(self.seen.outcomes) <= 1
        assert (self.flow.outcome is not None) == bool(self.seen.outcomes)

    @invariant()
    def everything_that_the_last_stage_made_is_delivered_in_order(self) -> None:
        assert self.seen.delivered == self.put_decoded

    @invariant()
    def what_a_stage_gets_is_what_was_put_in_order(self) -> None:
        for items in self.seen.items.values():
            numbers = [item for item in items if isinstance(item, int)]
            assert numbers == list(range(len(numbers)))

    @invariant()
    def well_behaved_stages_are_never_late(self) -> None:
        assert self.flow.late == 0


TestAnyFlow = AnyFlow.TestCase
TestAnyFlow.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.sampled_from(["put", "end", "took", "cancel", "fail"]), max_size=30), st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_stages_do_there_is_one_end_and_nothing_after_it(
    actions: list[str], data: st.DataObject
) -> None:
    flow = Flow(GUIDED, guided=True)
    flow.begin({"positive": 1, "negative": 2}, 0.0)
    effects = flow.take_effects()
    for action in actions:
        node = data.draw(st.sampled_from(flow.nodes))
        match action:
            case "put":
                flow.put(node, data.draw(st.sampled_from(Kind)), 0, 0.0)
            case "end":
                flow.end(node, 0.0)
            case "took":
                flow.took(node, 0.0)
            case "cancel":
                flow.cancel()
            case "fail":
                flow.fail("broken")
        effects += flow.take_effects()
    ends = [at for at, effect in enumerate(effects) if isinstance(effect, Outcome)]
    assert len(ends) <= 1
    assert not ends or ends[0] == len(effects) - 1
