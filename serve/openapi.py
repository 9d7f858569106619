"""OpenAPI document of the routes, derived from the types that validate requests."""

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


def openapi_document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in endpoints:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
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
    (_, schemas) = msgspec.json.schema_components([endpoint.parameters], ref_template="#/{name}")
    schema = schemas[endpoint.parameters.__name__]
    required = schema.get("required", ())
    in_body = endpoint.method == "POST"
    parameters = [
        {
            "name": name,
            "in": "path" if name in endpoint.in_path else "query",
            "required": name in required,
            "description": parameter_schema.get("description", ""),
            "schema": parameter_schema,
        }
        for name, parameter_schema in schema["properties"].items()
        if name in endpoint.in_path or not in_body
    ]
    summary = (endpoint.function.__doc__ or "").strip()
    media: dict[str, Any] = {"text/event-stream": {}} if endpoint.streams else {JSON: {"schema": {}}}
    if "format" in schema["properties"]:
        media[ARROW] = {}
    error = {"description": "An error.", "content": {JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.name}{'_of_body' if in_body else ''}",
        "summary": summary.partition("\n")[0],
        "description": f"A token needs the verb `{endpoint.verb}`." if endpoint.verb else "A token needs no verb.",
        "parameters": parameters,
        "responses": {
            "200": {"description": "The answer.", "content": media},
            "304": {"description": "Not changed since the ETag in `If-None-Match`."},
            **{str(code): error for code in CODES},
        },
    }
    if in_body:
        own = {name: value for name, value in schema["properties"].items() if name not in endpoint.in_path}
        body = {
            "type": "object",
            "properties": own,
            "required": [name for name in required if name in own],
            "additionalProperties": False,
        }
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return operation
