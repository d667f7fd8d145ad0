"""Hushing before it is certain that somebody speaks."""

import math

from duologue.sessions.suspicion import HUSH, REST, Suspicion


def test_a_frame_that_may_be_speech_is_suspicious_once():
    suspicion = Suspicion()
    assert not suspicion.rises(0.1, 1.0)
    assert suspicion.rises(0.15, 1.0)
    assert suspicion.active
    assert not suspicion.rises(0.9, 1.1)


def test_a_suspicion_that_nothing_confirms_ends_in_time():
    suspicion = Suspicion()
    assert suspicion.next_deadline() == math.inf
    suspicion.rises(0.2, 1.0)
    assert suspicion.next_deadline() == 1.0 + HUSH
    assert not suspicion.expires(1.0)
    assert suspicion.expires(1.0 + HUSH)
    assert not suspicion.expires(9.0)
    assert suspicion.next_deadline() == math.inf


def test_after_a_wrong_suspicion_there_is_none_for_a_while():
    suspicion = Suspicion()
    suspicion.rises(0.2, 1.0)
    suspicion.expires(1.2)
    assert not suspicion.rises(0.3, 1.3)
    assert suspicion.rises(0.3, 1.2 + REST)


def test_after_a_confirmed_one_there_may_be_another_at_once():
    suspicion = Suspicion()
    suspicion.rises(0.2, 1.0)
    suspicion.end()
    assert not suspicion.active
    assert suspicion.rises(0.2, 1.1)
