"""A schema that forces a call of one of some functions; pure.

A grammar compiler that meets a keyword it does not know gives up on the whole schema, silently. So
of the functions' own schemas only the plain keywords are kept: what is generated has the right
shape, and finer conditions are left to whoever is called.
"""

from collections.abc import Sequence

from duologue.engines.chat_messages import Json

DEEPEST = 8
MOST_PARTS = 500
"""Schemas within one function's; what is deeper or more may be anything."""

_TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))


def call_schema(functions: Sequence[Json]) -> Json:
    """For functions as chat completions describe them: one JSON object that calls one of them."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                "arguments": arguments_schema(function["parameters"]),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in functions
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def arguments_schema(parameters: Json) -> Json:
    """A function's parameters in plain keywords; always an object's schema."""
    plain = _Plain(parameters).of(parameters, DEEPEST)
    return plain if plain.get("type") == "object" else {"type": "object"}


class _Plain:
    """The plain parts of one schema; {} stands for anything."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._left = MOST_PARTS

    def of(self, schema: object, depth: int) -> Json:
        self._left -= 1
        if not isinstance(schema, dict) or depth == 0 or self._left < 0:
            return {}
        if "$ref" in schema:
            return self.of(_resolved(schema["$ref"], self._root), depth - 1)
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return {"enum": schema["enum"]}
        if "const" in schema:
            return {"const": schema["const"]}
        for keyword in ("anyOf", "oneOf"):
            choices = schema.get(keyword)
            if isinstance(choices, list) and choices:
                return {"anyOf": [self.of(choice, depth - 1) for choice in choices]}
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = [one for one in kind if _is_type(one)]
            choices = [self.of({**schema, "type": one}, depth - 1) for one in kinds]
            return {"anyOf": choices} if choices else {}
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return {"type": "array", "items": self.of(schema.get("items"), depth - 1)}
        return {"type": kind} if _is_type(kind) else {}

    def _object(self, schema: Json, depth: int) -> Json:
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return {"type": "object"}
        plain: Json = {
            "type": "object",
            "properties": {name: self.of(value, depth - 1) for name, value in properties.items()},
            # A small model that may invent names does so.
            "additionalProperties": False,
        }
        required = schema.get("required")
        if isinstance(required, list):
            plain["required"] = [name for name in properties if name in required]
        return plain


def _is_type(kind: object) -> bool:
    return isinstance(kind, str) and kind in _TYPES


def _resolved(reference: object, root: Json) -> object:
    """What a reference within the same schema stands for, ``None`` for any other."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: object = root
    for key in reference[2:].split("/"):
        if not isinstance(found, dict):
            return None
        found = found.get(key)
    return found
