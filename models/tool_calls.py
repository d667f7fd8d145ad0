"""Tool calls in a language model's text, told apart from speech while the text still grows.

Understood are Qwen's `<tool_call>` tags, a fenced block, and bare JSON: one object with a name and
arguments, several in a row, or a list of them. OpenAI's nesting (`function`) and the key
`parameters` are read too.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from duologue.models.json_scan import ObjectScan, decoded, scan_call

LONGEST_CALL = 16_384
"""Characters of one call; a longer one is taken for text."""

_TAG = "<tool_call>"
_OPENING = re.compile(r"<tool_call>|```|\{|\[")
_FENCE_HEAD = re.compile(r"```[\w-]*\s*")
_CLOSING = re.compile(r"(?:\s|,|;|\]|</tool_call>|```(?![\w-]))*")
_CLOSERS = ("</tool_call>", "```")


@dataclass(frozen=True, slots=True)
class Speech:
    """Text that is not part of a call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The model calls the function `name`; `index` counts the calls of this text from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call is complete: `arguments` is all its deltas joined.

    `complete` is false when the text broke off inside it.
    """

    index: int
    name: str
    arguments: str
    complete: bool = True


@dataclass(frozen=True, slots=True)
class CallRejected:
    """A call of a function that was not offered, or one that broke off before its name."""

    text: str


ToolCallEvent = Speech | CallStarted | ArgumentsDelta | CallEnded | CallRejected


class ToolCallParser:
    """One answer: text deltas in, events out, each as early as it is certain.

    Text that cannot be the beginning of a call is passed on at once. The events do not depend on
    how the text is cut into deltas, but for how the texts of Speech and ArgumentsDelta are.
    """

    def __init__(self, names: Collection[str]) -> None:
        """`names` are the functions that were offered; with none, all text is speech."""
        self._names = frozenset(names)
        self._pending = ""
        self._calls = 0
        self._started = False
        self._streamed = 0
        self._after_call = False

    def push(self, text: str) -> list[ToolCallEvent]:
        """More of the text."""
        if not self._names:
            return [Speech(text)] if text else []
        self._pending += text
        events: list[ToolCallEvent] = []
        while self._step(events):
            pass
        return _merged(events)

    def finish(self) -> list[ToolCallEvent]:
        """The text is over: what was held back, as speech, or as a call that broke off."""
        events: list[ToolCallEvent] = []
        pending, self._pending = self._pending, ""
        start = self._object_start(pending)
        scan = scan_call(pending, start) if start is not None else None
        if self._started and scan is not None:
            arguments = pending[scan.arguments_start : scan.arguments_end]
            if len(arguments) > self._streamed:
                events.append(ArgumentsDelta(self._calls, arguments[self._streamed :]))
            events.append(CallEnded(self._calls, scan.name, arguments, complete=False))
        elif pending.startswith(_TAG) or (scan is not None and scan.looks_like_call):
            events.append(CallRejected(pending))
        elif pending and not (self._after_call and _only_closes(pending)):
            events.append(Speech(pending))
        return events

    def _step(self, events: list[ToolCallEvent]) -> bool:
        """Take what is certain off the pending text; false when more of it must come first."""
        if self._after_call and not self._skip_closing():
            return False
        opening = _OPENING.search(self._pending)
        if opening is None or opening.start() > 0:
            return self._speak(opening.start() if opening else None, events)
        start = self._object_start(self._pending)
        if start is None:
            return self._could_open() is False and self._speak(opening.end(), events)
        return self._call(start, events)

    def _speak(self, end: int | None, events: list[ToolCallEvent]) -> bool:
        """Pass text on up to `end`, or up to what may become an opening."""
        if end is None:
            held = _held_back(self._pending)
            end = len(self._pending) - held
        if end == 0:
            return False
        events.append(Speech(self._pending[:end]))
        self._pending = self._pending[end:]
        self._after_call = False
        return bool(self._pending)

    def _object_start(self, text: str) -> int | None:
        """Where the object of a call begins behind its opening; None if it does not, or not yet."""
        at = 0
        if text.startswith(_TAG):
            at = len(_TAG)
        elif text.startswith("```"):
            head = _FENCE_HEAD.match(text)
            at = head.end() if head else 0
        match = re.compile(r"\s*(?:\[\s*)?(?=\{)").match(text, at)
        return match.end() if match else None

    def _could_open(self) -> bool:
        """Whether the pending text, which has no object yet, may still become a call."""
        return re.fullmatch(r"(?:<tool_call>|```[\w-]*)?\s*(?:\[\s*)?", self._pending) is not None

    def _call(self, start: int, events: list[ToolCallEvent]) -> bool:
        scan = scan_call(self._pending, start)
        if not self._started and self._is_text(scan):
            return self._speak(start + 1, events)
        known = scan.name in self._names
        if known and scan.arguments_start and not self._started:
            self._started = True
            events.append(CallStarted(self._calls, scan.name))
        if self._started and not scan.arguments_quoted:
            new = self._pending[scan.arguments_start + self._streamed : scan.arguments_end]
            if new:
                events.append(ArgumentsDelta(self._calls, new))
                self._streamed += len(new)
        if scan.end is None:
            return False
        self._end_call(scan, events, known)
        return True

    def _is_text(self, scan: ObjectScan) -> bool:
        """Whether the object is no call: broken, far too long, or about something else."""
        if scan.broken or len(self._pending) > LONGEST_CALL:
            return True
        return scan.end is not None and not scan.looks_like_call and scan.name not in self._names

    def _end_call(self, scan: ObjectScan, events: list[ToolCallEvent], known: bool) -> None:
        assert scan.end is not None
        if not known:
            events.append(CallRejected(self._pending[: scan.end]))
        else:
            arguments = self._pending[scan.arguments_start : scan.arguments_end] or "{}"
            if scan.arguments_quoted:
                arguments = decoded(arguments) or "{}"
            if not self._started:
                events.append(CallStarted(self._calls, scan.name))
            if self._streamed == 0:
                events.append(ArgumentsDelta(self._calls, arguments))
            events.append(CallEnded(self._calls, scan.name, arguments))
            self._calls += 1
        self._pending = self._pending[scan.end :]
        self._started, self._streamed, self._after_call = False, 0, True

    def _skip_closing(self) -> bool:
        """Drop what closes a call; false while a part of a closing mark may still grow."""
        if _only_closes(self._pending):
            return False
        self._pending, self._after_call = _CLOSING.sub("", self._pending, count=1), False
        return True


def _only_closes(text: str) -> bool:
    """Whether the text is nothing but closing marks, the last one perhaps in part."""
    rest = _CLOSING.sub("", text, count=1)
    return any(closer.startswith(rest) for closer in _CLOSERS)


def _held_back(text: str) -> int:
    """How many characters at the end may be the beginning of a tag or a fence."""
    for opening in (_TAG, "```"):
        for length in range(min(len(opening) - 1, len(text)), 0, -1):
            if text.endswith(opening[:length]):
                return length
    return 0


def _merged(events: list[ToolCallEvent]) -> list[ToolCallEvent]:
    """Neighbouring texts as one."""
    merged: list[ToolCallEvent] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, Speech) and isinstance(last, Speech):
            merged[-1] = Speech(last.text + event.text)
        else:
            merged.append(event)
    return merged
