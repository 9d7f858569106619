r"""The text of a key: one rule for the command line, HTTP, agents and files of keys, both ways.

One column's value is its text: a string as it is, also an empty one; a number, a date or a time as SQL writes it;
`true`; bytes as hexadecimal digits; a struct as a JSON object with all its fields. Null is `\N`, and a string that
looks like that has one more backslash: `\\N` is the string `\N`. Where several columns have one text together, that is
a JSON array, in which null is null and strings are only strings.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import Usage
from ...store.versions.manifest import Table

NULL = r"\N"
_LIKE_NULL = re.compile(r"\\+N")


def value_of(text: str) -> str | None:
    r"""Return the value of one key column that a text is, as `parse_keys` takes it: None for `\N`."""
    return None if text == NULL else text[1:] if _LIKE_NULL.fullmatch(text) else text


def text_of(value: object) -> str:
    """Return the text of one key column's value, which `value_of` takes back."""
    match value:
        case None:
            return NULL
        case str():
            return f"\\{value}" if _LIKE_NULL.fullmatch(value) else value
        case dict():
            return json.dumps(_for_json(value), ensure_ascii=False)
        case _:
            return str(_for_json(value, within=False))


def key_of(name: str, table: Table, text: str) -> Sequence[object]:
    """Return the values of a key that is one text: of several columns a JSON array. Raises `Usage` where it is none."""
    if len(table.key) == 1:
        return (value_of(text),)
    try:
        found = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        expected = ", ".join(f"{column.name} ({column.type})" for column in table.key)
        raise Usage(
            f"the key of table {name!r} is {expected}: a key of several columns is a JSON array",
            hint=f"""for example '["{table.key[0].name}", 7]'""",
        )
    return [json.dumps(each) if isinstance(each, bool | dict) else each for each in found]


def text_of_key(values: Sequence[object]) -> str:
    """Return the text of a whole key, which `key_of` takes back."""
    if len(values) == 1:
        return text_of(values[0])
    return json.dumps([_for_json(value) for value in values], ensure_ascii=False)


def _for_json(value: Any, *, within: bool = True) -> Any:
    """Return a value as JSON has it; numbers that it does not have, and times, as text."""
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
