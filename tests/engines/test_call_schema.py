from typing import Any

import pytest
from hypothesis import given, strategies as st

from duologue.engines.call_schema import arguments_schema, call_schema


def test_one_function_is_called_by_its_name() -> None:
    schema = call_schema([{"name": "look", "parameters": {"type": "object"}}])
    assert schema["properties"]["name"] == {"const": "look"}
    assert schema["required"] == ["name", "arguments"]


def test_of_several_one_is_called() -> None:
    functions = [{"name": name, "parameters": {}} for name in ("look", "say")]
    names = [call["properties"]["name"]["const"] for call in call_schema(functions)["anyOf"]]
    assert names == ["look", "say"]


def test_plain_keywords_are_kept_and_fine_conditions_are_not() -> None:
    assert arguments_schema(
        {
            "type": "object",
            "description": "x",
            "properties": {
                "city": {"type": "string", "pattern": "^a", "minLength": 3},
                "unit": {"type": "string", "enum": ["c", "f"]},
                "days": {"type": ["integer", "null"], "minimum": 1},
                "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
                "kind": {"const": 5},
                "any": {"oneOf": [{"type": "number"}, {"not": {}}]},
            },
            "required": ["city", "missing"],
            "patternProperties": {"x": {}},
        }
    ) == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"enum": ["c", "f"]},
            "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "kind": {"const": 5},
            "any": {"anyOf": [{"type": "number"}, {}]},
        },
        "additionalProperties": False,
        "required": ["city"],
    }


def test_references_are_followed_within_the_schema_only_and_not_for_ever() -> None:
    schema = {
        "type": "object",
        "properties": {
            "at": {"$ref": "#/$defs/place"},
            "far": {"$ref": "https://example.org/schema"},
            "none": {"$ref": "#/$defs/missing/deeper"},
        },
        "$defs": {
            "place": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "in": {"$ref": "#/$defs/place"}},
            }
        },
    }
    plain = arguments_schema(schema)["properties"]
    assert plain["at"]["properties"]["x"] == {"type": "number"}
    assert plain["far"] == plain["none"] == {}


def test_a_schema_that_multiplies_itself_is_bounded() -> None:
    parts = {f"p{number}": {"$ref": "#"} for number in range(20)}
    assert len(str(arguments_schema({"type": "object", "properties": parts}))) < 50_000


@pytest.mark.parametrize("parameters", [{}, {"type": "string"}, {"type": []}, {"properties": 5}])
def test_arguments_are_an_object_whatever_is_declared(parameters: dict[str, Any]) -> None:
    assert arguments_schema(parameters) == {"type": "object"}


KEYWORDS = st.sampled_from(
    ["type", "properties", "required", "items", "enum", "const", "anyOf", "$ref", "x", "object"]
)
VALUES = st.recursive(
    st.none() | st.sampled_from(["object", "array", "string", "#/properties/x", "#/x", "#/"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=5),
    max_leaves=25,
)


@given(st.dictionaries(KEYWORDS, VALUES, max_size=5))
def test_any_declaration_becomes_an_objects_schema(parameters: dict[str, Any]) -> None:
    assert arguments_schema(parameters)["type"] == "object"
