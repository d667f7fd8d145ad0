"""Questions of decisions, as the ``openai`` package types them (``DecisionQuestion``)."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from duologue.realtime.json_fields import Fields, missing, wrong_type, wrong_value
from duologue.sessions.live_config import Question

MOST_QUESTIONS: Final = 32
MOST_OPTIONS: Final = 64
LONGEST_TEXT: Final = 32_768
Kind = Literal["choice", "predicate", "score"]
_KINDS: Final[tuple[Kind, ...]] = ("choice", "predicate", "score")


def decode_questions(fields: Fields) -> tuple[Question, ...]:
    """``questions``. Raises ProtocolError."""
    given = fields.objects("questions")
    if given is None:
        raise missing(fields.at("questions"))
    if not 0 < len(given) <= MOST_QUESTIONS:
        raise wrong_value(fields.at("questions"), f"must be 1 to {MOST_QUESTIONS} questions.")
    return tuple(map(_decode_question, given))


def _decode_question(question: Fields) -> Question:
    kind = question.choice("type", _KINDS)
    if kind is None:
        raise missing(question.at("type"))
    listed = {"choice": ("choices",), "score": ("levels",), "predicate": ()}[kind]
    question.only("type", "instructions", "name", *listed)
    return Question(
        kind,
        decode_text(question, "instructions"),
        _OPTIONS[kind](question),
        question.string("name", 256),
    )


def _no_options(question: Fields) -> tuple[tuple[str | bool, str], ...]:
    return ()


def _choices(question: Fields) -> tuple[tuple[str | bool, str], ...]:
    options: list[tuple[str | bool, str]] = []
    for option in _listed(question, "choices"):
        option.only("value", "description")
        value = option.value("value")
        if not isinstance(value, str | bool):
            raise wrong_type(option.at("value"), "string or boolean", value)
        options.append((value, option.string("description", LONGEST_TEXT) or ""))
    return tuple(options)


def _levels(question: Fields) -> tuple[tuple[str | bool, str], ...]:
    options: list[tuple[str | bool, str]] = []
    for level in _listed(question, "levels"):
        level.only("label", "description")
        label = level.required_string("label", 256)
        options.append((label, level.string("description", LONGEST_TEXT) or ""))
    return tuple(options)


def _listed(question: Fields, name: str) -> list[Fields]:
    given = question.objects(name)
    if given is None:
        raise missing(question.at(name))
    if not 0 < len(given) <= MOST_OPTIONS:
        raise wrong_value(question.at(name), f"must have 1 to {MOST_OPTIONS} entries.")
    return given


_OPTIONS: Final[Mapping[Kind, Callable[[Fields], tuple[tuple[str | bool, str], ...]]]] = {
    "choice": _choices,
    "predicate": _no_options,
    "score": _levels,
}


def decode_text(fields: Fields, name: str) -> str:
    """A text, or the texts of its parts; pictures and JSON are read as their JSON's text."""
    value = fields.value(name)
    if isinstance(value, str):
        return fields.required_string(name, LONGEST_TEXT)
    parts = fields.objects(name)
    if parts is None:
        raise missing(fields.at(name))
    texts: list[str] = []
    for part in parts:
        kind = part.required_string("type", 64)
        if kind == "input_json":
            texts.append(str(part.kept("data")))
        elif kind == "refusal":
            texts.append(part.required_string("refusal", LONGEST_TEXT))
        elif kind != "input_image":
            texts.append(part.required_string("text", LONGEST_TEXT))
    return "\n".join(texts)
