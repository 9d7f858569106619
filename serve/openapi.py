"""The OpenAPI document: made of the very types that requests are held to."""

from collections.abc import Sequence
from typing import Any

import msgspec

from .. import __version__
from .declare import Endpoint
from .errors import CODES
from .service import ARROW, JSON

_PROBLEM = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "message": {"type": "string"}, "hint": {"type": "string"}},
    "required": ["error", "message", "hint"],
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1 of some routes."""
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "slackwater",
            "version": __version__,
            "description": "State of streaming apps, at any moment.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    (_, schemas) = msgspec.json.schema_components([endpoint.asked], ref_template="#/{name}")
    schema = schemas[endpoint.asked.__name__]
    required = schema.get("required", ())
    in_body = endpoint.method == "POST"
    parameters = [
        {
            "name": name,
            "in": "path" if name in endpoint.in_path else "query",
            "required": name in required,
            "description": each.get("description", ""),
            "schema": each,
        }
        for name, each in schema["properties"].items()
        if name in endpoint.in_path or not in_body
    ]
    words = (endpoint.function.__doc__ or "").strip()
    media: dict[str, Any] = {"text/event-stream": {}} if endpoint.streams else {JSON: {"schema": {}}}
    if "format" in schema["properties"]:
        media[ARROW] = {}
    found: dict[str, Any] = {
        "operationId": f"{endpoint.name}{'_of_body' if in_body else ''}",
        "summary": words.partition("\n")[0],
        "description": f"A token needs the verb `{endpoint.verb}`." if endpoint.verb else "Any token will do.",
        "parameters": parameters,
        "responses": {
            "200": {"description": "What was asked for.", "content": media},
            "304": {"description": "It is what `If-None-Match` says."},
            **{str(code): {"description": "What went wrong.", "content": _problem()} for code in CODES},
        },
    }
    if in_body:
        own = {name: each for name, each in schema["properties"].items() if name not in endpoint.in_path}
        body = {
            "type": "object",
            "properties": own,
            "required": [name for name in required if name in own],
            "additionalProperties": False,
        }
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return found


def _problem() -> dict[str, Any]:
    return {JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
