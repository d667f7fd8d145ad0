"""Reading a client's JSON object field by field, with the path that an error names.

A getter returns ``None`` for a field that is absent or ``null`` and raises ProtocolError for one
of the wrong type (``invalid_type``) or outside its range (``invalid_value``). Numbers that are
whole count as integers, however they are written; booleans never count as numbers.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from duologue.sessions.errors import ProtocolError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

LONGEST_ID = 256
"""Characters of an id that a client chooses."""

MAX_INTEGER = 2**53
"""The largest integer that every JSON reader keeps exact."""

DEEPEST = 64
"""Levels of objects and arrays in a value that is kept as it is."""

_Choice = TypeVar("_Choice", bound=str)
_SHOWN = 64
_INT64 = 2**63


def name_of(value: Json) -> str:
    """The JSON type of a value, as error messages call it."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def wrong_type(path: str, expected: str, value: Json) -> ProtocolError:
    article = "an" if expected[0] in "aio" else "a"
    return ProtocolError(
        "invalid_type", f"'{path}' must be {article} {expected}, not {name_of(value)}.", path
    )


def wrong_value(path: str, message: str) -> ProtocolError:
    return ProtocolError("invalid_value", f"'{path}' {message}", path)


def missing(path: str) -> ProtocolError:
    return ProtocolError("missing_required_parameter", f"'{path}' is required.", path)


def unsupported(path: str, message: str) -> ProtocolError:
    return ProtocolError("unsupported", message, path)


def shown(value: str) -> str:
    """A client's string as an error message quotes it: short, and on one line."""
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")


def _check_kept(value: Json, path: str, depth: int = DEEPEST) -> None:
    """Refuses what could be read but not be written again: too deep, or integers past 64 bits."""
    if depth == 0:
        raise wrong_value(path, f"must not be nested deeper than {DEEPEST} levels.")
    if isinstance(value, dict):
        for inner in value.values():
            _check_kept(inner, path, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            _check_kept(inner, path, depth - 1)
    elif isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise wrong_value(path, "must not hold integers of more than 64 bits.")


class Fields:
    """A JSON object and where it stands in the event (``""`` is the event itself)."""

    __slots__ = ("_values", "path")

    def __init__(self, value: Json, path: str = "") -> None:
        if not isinstance(value, dict):
            raise wrong_type(path, "object", value)
        self._values: Mapping[str, Json] = value
        self.path = path

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """Whether the field is there at all, ``null`` or not."""
        return name in self._values

    def clears(self, name: str) -> bool:
        """Whether the field is there and ``null``."""
        return name in self._values and self._values[name] is None

    def only(self, *names: str) -> None:
        """Raises ProtocolError ``unknown_parameter`` for the first field that is none of these."""
        for name in self._values:
            if name not in names:
                path = self.at(name[:LONGEST_ID])
                raise ProtocolError("unknown_parameter", f"Unknown parameter: '{path}'.", path)

    def value(self, name: str) -> Json:
        return self._values.get(name)

    def items(self) -> Iterator[tuple[str, Json]]:
        return iter(self._values.items())

    def kept(self, name: str) -> Json:
        """A value of any shape that will be stored and sent back as it is."""
        value = self._values.get(name)
        _check_kept(value, self.at(name))
        return value

    def string(self, name: str, longest: int | None = None) -> str | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise wrong_type(self.at(name), "string", value)
        if longest is not None and len(value) > longest:
            raise wrong_value(self.at(name), f"must not be longer than {longest} characters.")
        return value

    def required_string(self, name: str, longest: int | None = None) -> str:
        value = self.string(name, longest)
        if value is None:
            raise missing(self.at(name))
        return value

    def required_id(self, name: str) -> str:
        value = self.required_string(name, LONGEST_ID)
        if not value:
            raise wrong_value(self.at(name), "must not be empty.")
        return value

    def choice(self, name: str, options: tuple[_Choice, ...]) -> _Choice | None:
        value = self.string(name)
        if value is None:
            return None
        for option in options:
            if option == value:
                return option
        listed = ", ".join(f"'{option}'" for option in options)
        raise wrong_value(self.at(name), f"must be one of {listed}, not {shown(value)}.")

    def integer(self, name: str, low: int, high: int = MAX_INTEGER) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(self.at(name), "integer", value)
        if not low <= value <= high:
            raise wrong_value(self.at(name), f"must be from {low} to {high}.")
        return value

    def required_integer(self, name: str, low: int, high: int = MAX_INTEGER) -> int:
        value = self.integer(name, low, high)
        if value is None:
            raise missing(self.at(name))
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(self.at(name), "number", value)
        if not low <= value <= high:
            raise wrong_value(self.at(name), f"must be from {low:g} to {high:g}.")
        return float(value)

    def boolean(self, name: str) -> bool | None:
        value = self._values.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise wrong_type(self.at(name), "boolean", value)

    def object(self, name: str) -> "Fields | None":
        value = self._values.get(name)
        return None if value is None else Fields(value, self.at(name))

    def required_object(self, name: str) -> "Fields":
        value = self.object(name)
        if value is None:
            raise missing(self.at(name))
        return value

    def array(self, name: str) -> list[Json] | None:
        value = self._values.get(name)
        if value is None or isinstance(value, list):
            return value
        raise wrong_type(self.at(name), "array", value)

    def objects(self, name: str) -> "list[Fields] | None":
        """An array of objects, each with its own path (``tools[0]``)."""
        values = self.array(name)
        if values is None:
            return None
        return [Fields(value, f"{self.at(name)}[{index}]") for index, value in enumerate(values)]

    def strings(self, name: str) -> tuple[str, ...] | None:
        values = self.array(name)
        if values is None:
            return None
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise wrong_type(f"{self.at(name)}[{index}]", "string", value)
        return tuple(value for value in values if isinstance(value, str))
