r"""Text form of a key, for the command line, HTTP, agents and files of keys, in both directions.

A value of one column is written as its text: a string unchanged, even if empty; numbers, dates and times as in SQL;
`true`; bytes in hexadecimal; a struct as a JSON object with all its fields. Null is `\N`. A string that consists of
backslashes and a final `N` gets one more backslash: `\\N` stands for the string `\N`. The text of several columns is a
JSON array, in which null is null and strings need no backslash.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import Usage
from ...store.versions.manifest import Table

NULL = r"\N"
_ESCAPED_NULL = re.compile(r"\\+N")


def parse_value(text: str) -> str | None:
    r"""Parse the text of one key column into a value for `parse_keys`; None for `\N`."""
    return None if text == NULL else text[1:] if _ESCAPED_NULL.fullmatch(text) else text


def format_value(value: object) -> str:
    """Format the value of one key column; the inverse of `parse_value`."""
    match value:
        case None:
            return NULL
        case str():
            return f"\\{value}" if _ESCAPED_NULL.fullmatch(value) else value
        case dict():
            return json.dumps(_for_json(value), ensure_ascii=False)
        case _:
            return str(_for_json(value, within=False))


def parse_key_text(name: str, table: Table, text: str) -> Sequence[object]:
    """Parse the text of a whole key, a JSON array for several columns. Raises `Usage` (not an array)."""
    if len(table.key) == 1:
        return (parse_value(text),)
    try:
        values = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list):
        expected = ", ".join(f"{column.name} ({column.type})" for column in table.key)
        raise Usage(
            f"the key of table {name!r} is {expected}: a key of several columns is a JSON array",
            hint=f"""for example '["{table.key[0].name}", 7]'""",
        )
    return [json.dumps(value) if isinstance(value, bool | dict) else value for value in values]


def format_key(values: Sequence[object]) -> str:
    """Format a whole key; the inverse of `parse_key_text`."""
    if len(values) == 1:
        return format_value(values[0])
    return json.dumps([_for_json(value) for value in values], ensure_ascii=False)


def _for_json(value: Any, *, within: bool = True) -> Any:
    """Convert a value to a value of JSON. Numbers and times that JSON lacks become text."""
    match value:
        case None | str():
            return value
        case bool():
            return value if within else str(value).lower()
        case int():
            return value
        case bytes():
            return value.hex()
        case Mapping():
            return {name: _for_json(inner) for name, inner in value.items()}
        case _:
            return f"{value:f}" if type(value).__name__ == "Decimal" else str(value)
