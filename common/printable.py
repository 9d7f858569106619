"""Escaping of untrusted text for display on one line of a terminal.

Names, values and messages may come from untrusted people. Characters are escaped with a backslash, as in Python, if
they control the terminal, break the line, change its direction, or are invisible. So no text can imitate the product's
output or another name.
"""

import re
import unicodedata

# Unicode's categories Cc (control), Cf (format), Cs (lone surrogates), Zl and Zp (line breaks), and all other
# characters with Default_Ignorable_Code_Point, which terminals do not show.
_HIDDEN = (
    r"\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_UNSAFE = re.compile(f"[{_HIDDEN}]")
# Line breaks between JSON tokens stay; within strings they are already escaped.
_UNSAFE_IN_JSON = re.compile(f"(?!\n)[{_HIDDEN}]")

_JOINER = "\u200d"
_STYLES = "\ufe0e\ufe0f"
_KEYCAP = "\u20e3"
_SKIN = re.compile("[\U0001f3fb-\U0001f3ff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """Return `text` on one line, with all invisible characters escaped.

    Joiners and style selectors within emoji stay. Backslashes are not escaped: the text is for reading, not for
    parsing.
    """
    return _UNSAFE.sub(_escape_match, text)


def escaped_in_json(document: str) -> str:
    """Escape control and invisible characters in a JSON document, by JSON's escapes, for display on a terminal."""
    return _UNSAFE_IN_JSON.sub(lambda match: _utf16_escapes(match[0]), document)


def _utf16_escapes(character: str) -> str:
    data = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))


def _escape_match(match: re.Match[str]) -> str:
    character = match[0]
    if _within_emoji(match.string, match.start()):
        return character
    code = ord(character)
    return _SHORT.get(character) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def _within_emoji(text: str, at: int) -> bool:
    character, preceding, following = text[at], text[:at][-3:], text[at + 1 : at + 2]
    if character in _STYLES:
        return following == _KEYCAP or _is_picture(preceding[-1:])
    if character == _JOINER:
        return _is_picture(_SKIN.sub("", preceding.rstrip(_STYLES))[-1:]) and _is_picture(following)
    return False


def _is_picture(character: str) -> bool:
    return bool(character) and unicodedata.category(character) in ("So", "Sm") and not character.isascii()
