"""Questions of decisions."""

import pytest

from duologue.realtime.json_fields import Fields, Json
from duologue.realtime.live_questions import decode_questions
from duologue.sessions.errors import ProtocolError
from duologue.sessions.live_config import Question


def test_each_kind_is_read() -> None:
    given: Json = {
        "questions": [
            {"type": "predicate", "instructions": "Is it?", "name": "a"},
            {
                "type": "choice",
                "instructions": [{"type": "input_text", "text": "Which?"}],
                "choices": [{"value": "x", "description": "X"}, {"value": True}],
            },
            {"type": "score", "instructions": "How?", "levels": [{"label": "low"}]},
        ]
    }
    assert decode_questions(Fields(given)) == (
        Question("predicate", "Is it?", (), "a"),
        Question("choice", "Which?", (("x", "X"), (True, ""))),
        Question("score", "How?", (("low", ""),)),
    )


@pytest.mark.parametrize(
    ("questions", "param"),
    [
        (None, "questions"),
        ([], "questions"),
        ([{"instructions": "x"}], "questions[0].type"),
        ([{"type": "predicate"}], "questions[0].instructions"),
        ([{"type": "choice", "instructions": "x"}], "questions[0].choices"),
        (
            [{"type": "choice", "instructions": "x", "choices": [{"value": 5}]}],
            "questions[0].choices[0].value",
        ),
        (
            [{"type": "score", "instructions": "x", "levels": [{"label": "a", "b": 1}]}],
            "questions[0].levels[0].b",
        ),
    ],
)
def test_one_that_is_wrong_is_refused_with_its_place(questions: Json, param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_questions(Fields({"questions": questions}))
    assert caught.value.param == param
