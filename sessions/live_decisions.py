"""Questions that are decided while a conversation goes on.

Each is put to the language model beside the conversation, as text, one after the other; what it
answers is matched with what there is to choose from. An answer that matches nothing is a refusal.
A model tells no probabilities, so what it picks has 1 and the rest 0.
"""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from duologue.engines.engine import Usage
from duologue.sessions.effects import ResponseView
from duologue.sessions.events import CreateResponse, ResponseParams
from duologue.sessions.items import InputText, MessageItem, OutputAudio, OutputText
from duologue.sessions.live_config import Question, TranscriptEvent
from duologue.sessions.live_events import DecisionMade

MOST_WAITING: Final = 8
"""Decisions that wait; one more of a trigger's is left out, one more of a client's is refused."""
ANSWER_TOKENS: Final = 24
MARK: Final = "duologue_decision"
"""The metadata by which an answer is known."""
_SPACES: Final = re.compile(r"[^\w]+")


@dataclass(slots=True)
class _Decision:
    questions: tuple[Question, ...]
    texts: tuple[str, ...]
    source: TranscriptEvent | None = None
    trigger_id: str | None = None
    answers: list[dict[str, object]] = field(default_factory=list)
    usage: Usage = Usage()


class Decisions:
    """One session's. ``ask`` takes what goes to the core, ``tell`` what is told to the client."""

    def __init__(
        self,
        ask: Callable[[CreateResponse], None],
        tell: Callable[[DecisionMade], None],
        event_id: str,
        model: str,
    ) -> None:
        """``event_id``: that of what nobody asked for."""
        self._ask = ask
        self._tell = tell
        self._event_id = event_id
        self._model = model
        self._waiting: deque[_Decision] = deque()

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MOST_WAITING

    def decide(
        self,
        questions: tuple[Question, ...],
        texts: tuple[str, ...],
        source: TranscriptEvent | None = None,
        trigger_id: str | None = None,
    ) -> None:
        """Decide these, after what waits."""
        if self.full or not questions:
            return
        self._waiting.append(_Decision(questions, texts, source, trigger_id))
        if len(self._waiting) == 1:
            self._next()

    def _next(self) -> None:
        decision = self._waiting[0]
        question = decision.questions[len(decision.answers)]
        params = ResponseParams(
            conversation=False,
            instructions=_prompt(question, decision.texts),
            modality="text",
            tools=(),
            tool_choice="none",
            max_output_tokens=ANSWER_TOKENS,
            metadata={MARK: "1"},
        )
        self._ask(CreateResponse(self._event_id, params))

    def response_done(self, response: ResponseView) -> None:
        """The model has answered, if it was asked by us."""
        if not self._waiting or not response.metadata or MARK not in response.metadata:
            return
        decision = self._waiting[0]
        question = decision.questions[len(decision.answers)]
        decision.answers.append(_answer(question, _text(response)))
        if response.usage is not None:
            used = response.usage.text
            decision.usage = Usage(
                input_tokens=decision.usage.input_tokens + used.input_tokens,
                cached_tokens=decision.usage.cached_tokens + used.cached_tokens,
                output_tokens=decision.usage.output_tokens + used.output_tokens,
            )
        if len(decision.answers) == len(decision.questions):
            self._waiting.popleft()
            self._tell(
                DecisionMade(self._shown(decision), None, decision.source, decision.trigger_id)
            )
        if self._waiting:
            self._next()

    def failed(self) -> None:
        """A question could not be asked: the decision is dropped."""
        if self._waiting:
            self._waiting.popleft()
        if self._waiting:
            self._next()

    def _shown(self, decision: _Decision) -> dict[str, object]:
        usage = decision.usage
        return {
            "model": self._model,
            "answers": decision.answers,
            "usage": {
                "input_tokens": usage.input_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cached_tokens,
                    "cache_write_tokens": 0,
                },
                "output_tokens": usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.input_tokens + usage.output_tokens,
            },
        }


def _labels(question: Question) -> tuple[tuple[str, str], ...]:
    """What may be answered, with what it means."""
    if question.kind == "predicate":
        return (("yes", ""), ("no", ""))
    return tuple((_label(value), meaning) for value, meaning in question.options)


def _label(value: str | bool) -> str:
    return value if isinstance(value, str) else "true" if value else "false"


def _prompt(question: Question, texts: tuple[str, ...]) -> str:
    lines = ["Answer this question about the conversation so far.", question.instructions]
    if texts:
        lines += ["What else is known:", *texts]
    lines.append("Answer with exactly one of these, and nothing else:")
    for label, meaning in _labels(question):
        lines.append(f"- {label}: {meaning}" if meaning else f"- {label}")
    return "\n".join(lines)


def _text(response: ResponseView) -> str:
    said = ""
    for item in response.output:
        if isinstance(item, MessageItem):
            for part in item.content:
                if isinstance(part, OutputText | InputText):
                    said += part.text
                elif isinstance(part, OutputAudio):
                    said += part.transcript
    return said


def _plain(text: str) -> str:
    return _SPACES.sub(" ", text.lower()).strip()


def picked(question: Question, text: str) -> int | None:
    """Which of the answers a text is: itself, or the only one that it begins with or names."""
    plain = _plain(text)
    labels = [_plain(label) for label, _ in _labels(question)]
    if plain in labels:
        return labels.index(plain)
    for found in (
        [n for n, label in enumerate(labels) if label and f"{plain} ".startswith(f"{label} ")],
        [n for n, label in enumerate(labels) if label and f" {label} " in f" {plain} "],
    ):
        if len(found) == 1:
            return found[0]
    return None


def _answer(question: Question, text: str) -> dict[str, object]:
    """As the Decision API shows it."""
    pick = picked(question, text)
    if pick is None:
        return {"type": "refusal", "name": question.name}
    named: dict[str, object] = {"type": question.kind, "name": question.name}
    if question.kind == "predicate":
        return {**named, "probability": 1.0 - pick}
    chances = [1.0 if n == pick else 0.0 for n in range(len(question.options))]
    if question.kind == "choice":
        return {
            **named,
            "choice": question.options[pick][0],
            "confidence": 1.0,
            "probabilities": [
                {"value": value, "probability": chance}
                for (value, _), chance in zip(question.options, chances, strict=True)
            ],
        }
    return {
        **named,
        "score": float(pick),
        "confidence": 1.0,
        "probabilities": [
            {"label": _label(label), "value": n, "probability": chance}
            for n, ((label, _), chance) in enumerate(zip(question.options, chances, strict=True))
        ],
    }
