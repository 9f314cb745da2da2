"""What all outputs share: a strict object whose fields carry their meaning and unit."""

from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

ABSENT: Any = None
"""Default of a key that is left out where it has no meaning."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Object(BaseModel):
    """An object whose keys are all known; the text behind a field is its description in the schema."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, populate_by_name=True)


def schema_of(title: str, kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type, in the dialect of 2020-12."""
    found: dict[str, Any] = TypeAdapter(kind).json_schema(by_alias=True)
    return {"$schema": DIALECT, "title": title, **_plain(found)}


def _plain(value: Any) -> Any:
    """Return a part of a schema without titles that repeat names, and without defaults of absent keys."""
    if isinstance(value, dict):
        return {
            name: _plain(each)
            for name, each in value.items()
            if not (name == "default" and each is None) and not (name == "title" and isinstance(each, str))
        }
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value
