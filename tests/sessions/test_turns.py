"""The tables: complete, and nothing happens that is not in them."""

from itertools import product

import pytest

from duologue.sessions.session_config import TurnPolicy
from duologue.sessions.turns import (
    ASSISTANT,
    CONNECTION,
    COUPLINGS,
    GENERATION,
    USER,
    Assistant,
    AssistantSignal,
    Connection,
    ConnectionSignal,
    Generation,
    GenerationSignal,
    Reaction,
    User,
    UserSignal,
    step,
)

TABLES = [
    (CONNECTION, Connection, ConnectionSignal),
    (USER, User, UserSignal),
    (ASSISTANT, Assistant, AssistantSignal),
    (GENERATION, Generation, GenerationSignal),
]
BY_NAME = pytest.mark.parametrize(
    ("table", "states", "signals"), TABLES, ids=[states.__name__ for _, states, _ in TABLES]
)


@BY_NAME
def test_every_state_has_a_row(table, states, signals):
    assert set(table) == set(states)


@BY_NAME
def test_every_signal_moves_some_state(table, states, signals):
    assert {signal for row in table.values() for signal in row} == set(signals)


@BY_NAME
def test_every_state_but_the_first_can_be_reached(table, states, signals):
    reached = [next(iter(states))]
    for state in reached:
        reached += [after for after in table[state].values() if after not in reached]
    assert set(reached) == set(states)


@BY_NAME
def test_a_signal_that_a_state_does_not_know_changes_nothing(table, states, signals):
    for state, signal in product(states, signals):
        if signal not in table[state]:
            assert step(table, state, signal) is state


@BY_NAME
def test_a_signal_that_a_state_knows_leads_where_the_table_says(table, states, signals):
    for state, row in table.items():
        for signal, after in row.items():
            assert step(table, state, signal) is after


def test_nothing_leads_out_of_a_closed_connection():
    assert CONNECTION[Connection.CLOSED] == {}


def test_a_connection_that_ends_can_always_be_cleaned_up_in_the_end():
    for state in (Connection.CLOSING, Connection.FAILED, Connection.CLEANUP_FAILED):
        assert step(CONNECTION, state, ConnectionSignal.CLEANED) is Connection.CLOSED


def test_a_cancelled_assistant_may_be_asked_again_before_the_engine_has_confirmed():
    after = step(ASSISTANT, Assistant.YIELDING, AssistantSignal.REQUESTED)
    assert after is Assistant.THINKING


def test_what_the_engine_says_after_its_last_word_reopens_nothing():
    for signal in GenerationSignal:
        assert step(GENERATION, Generation.CLOSED, signal) is Generation.CLOSED


def test_every_policy_has_its_coupling():
    assert set(COUPLINGS) == set(TurnPolicy)


def test_only_a_speaking_user_makes_the_assistant_react():
    for coupling in COUPLINGS.values():
        assert {user for user, _ in coupling} <= {User.SPEAKING}


def test_a_quiet_or_yielding_assistant_has_nothing_to_react_with():
    for coupling in COUPLINGS.values():
        assert not {Assistant.QUIET, Assistant.YIELDING} & {state for _, state in coupling}


def test_with_barge_in_whatever_the_assistant_does_yields():
    assert set(COUPLINGS[TurnPolicy.BARGE_IN].values()) == {Reaction.YIELD}
    assert len(COUPLINGS[TurnPolicy.BARGE_IN]) == 3


def test_a_backchannel_is_judged_only_where_it_overlaps_with_speech():
    coupling = COUPLINGS[TurnPolicy.BACKCHANNEL_AWARE]
    judged = [pair for pair, reaction in coupling.items() if reaction is Reaction.JUDGE]
    assert judged == [(User.SPEAKING, Assistant.SPEAKING)]


@pytest.mark.parametrize("policy", [TurnPolicy.MANUAL, TurnPolicy.OVERLAP])
def test_where_somebody_else_decides_an_overlap_couples_nothing(policy):
    assert COUPLINGS[policy] == {}
