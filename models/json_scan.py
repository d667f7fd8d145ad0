"""Reading a tool call's JSON object while it is still being written."""

import json
from dataclasses import dataclass

_NAME_KEYS = ("name", "function_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
_OTHER_KEYS = ("function", "type", "id", "call_id")
_SPACE = " \t\r\n"
_SCALAR_ENDS = ",]}" + _SPACE


@dataclass(slots=True)
class ObjectScan:
    """What is known of an object so far, as positions in the text that was scanned.

    `end` is None until the object is closed. `arguments_start` is 0 until the arguments begin;
    `arguments_end` is where they end, or where the text does. `arguments_quoted` says that they are
    a JSON string with JSON inside, or null. `broken` says that this will not be a call: no JSON
    object, or one about something else.
    """

    name: str = ""
    arguments_start: int = 0
    arguments_end: int = 0
    arguments_quoted: bool = False
    end: int | None = None
    broken: bool = False

    @property
    def looks_like_call(self) -> bool:
        """It has a name and arguments, whatever they are."""
        return bool(self.name) and self.arguments_start > 0


def scan_call(text: str, start: int) -> ObjectScan:
    """Scan the object that opens at `text[start]`, which is "{"."""
    scan = ObjectScan()
    scan.end = _object(text, start, scan)
    return scan


def _object(text: str, start: int, scan: ObjectScan) -> int | None:
    at = _skip(text, start + 1)
    while at < len(text):
        if text[at] == "}":
            return at + 1
        if text[at] == ",":
            at = _skip(text, at + 1)
            continue
        if text[at] != '"':
            scan.broken = True
            return None
        key_end = _string_end(text, at)
        if key_end is None:
            return None
        key = decoded(text[at:key_end])
        if key not in (*_NAME_KEYS, *_ARGUMENT_KEYS, *_OTHER_KEYS):
            scan.broken = scan.broken or not scan.looks_like_call
        at = _skip(text, key_end)
        if at >= len(text):
            return None
        if text[at] != ":":
            scan.broken = True
            return None
        value = _skip(text, at + 1)
        if value >= len(text):
            return None
        end = _member(text, key, value, scan)
        if end is None:
            return None
        at = _skip(text, end)
    return None


def _member(text: str, key: str, value: int, scan: ObjectScan) -> int | None:
    """Take in one value of the object; returns its end, None while it is open."""
    if key == "function" and text[value] == "{":
        return _object(text, value, scan)
    end = _value_end(text, value)
    if (
        key in (*_NAME_KEYS, "function")
        and text[value] == '"'
        and end is not None
        and not scan.name
    ):
        scan.name = decoded(text[value:end])
    if key in _ARGUMENT_KEYS and not scan.arguments_start and text[value] in '{"n':
        scan.arguments_quoted = text[value] != "{"
        scan.arguments_start = value
        scan.arguments_end = len(text) if end is None else end
    return end


def _value_end(text: str, start: int) -> int | None:
    """Where the value that begins at `start` ends, None while it is open."""
    if text[start] == '"':
        return _string_end(text, start)
    depth, at = 0, start
    while at < len(text):
        character = text[at]
        if character == '"':
            end = _string_end(text, at)
            if end is None:
                return None
            at = end
            continue
        if character in "{[":
            depth += 1
        elif character in "}]" and depth:
            depth -= 1
            if depth == 0:
                return at + 1
        elif depth == 0 and character in _SCALAR_ENDS:
            return at
        at += 1
    return None


def _string_end(text: str, start: int) -> int | None:
    """The position behind the closing quote of the string that opens at `start`."""
    at = start + 1
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] == '"':
            return at + 1
        at += 1
    return None


def decoded(value: str) -> str:
    """What a JSON string says, as well as can be told; "" for null."""
    try:
        content = json.loads(value, strict=False)
    except json.JSONDecodeError:
        return value[1:-1]
    return "" if content is None else str(content)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at
