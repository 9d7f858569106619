"""Removal of secrets from messages of libraries and servers, which repeat addresses and options."""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qsl, unquote

_SHORTEST = 3
# A user or password that nobody has escaped may have spaces and slashes.
_USER = re.compile(r"([a-z][a-z0-9+.-]*://)?(?:(?<=//).*|\S*)@", re.IGNORECASE)
_QUERY = re.compile(r"\?\S+")


def replace_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace each of the known secrets by `***`. Texts of less than three characters stay."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        text = text.replace(secret, "***") if len(secret) >= _SHORTEST else text
    return text


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace the known secrets, all text before an `@` in a word or URL, and queries of URLs by `***`."""
    return _QUERY.sub("?***", _USER.sub(r"\1***@", replace_secrets(text, secrets)))


def secrets_of_url(url: str) -> Iterator[str]:
    """Yield user, password and query of a URL as they are written and as they are parsed."""
    login, _, _ = url.partition("://")[2].rpartition("@")
    user, _, password = login.partition(":")
    query = url.partition("?")[2]
    # Libraries that do not expect a slash in a password show parts of it.
    parts = re.split("[:/]+", url.rpartition("@")[0])[1:]
    yield from (login, user, password, unquote(password), query, *parts, *(value for _, value in parse_qsl(query)))
