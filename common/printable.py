"""Text that came from anywhere, such that it can be shown to a person on one line of a terminal.

Names, values and messages come from strangers. What would steer the terminal, end the line, turn its direction, or not
be seen at all is written out with a backslash, as Python writes it. So no text can pass itself off as a line of ours,
or as another name.
"""

import re
import unicodedata

# Of Unicode's categories all of Cc (control), Cf (format), Cs (lone surrogates), Zl and Zp (line breaks); and what else
# is Default_Ignorable_Code_Point, which terminals do not show.
_HIDDEN = (
    r"\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_UNSAFE = re.compile(f"[{_HIDDEN}]")
# JSON's own line breaks stay; within its strings they are escaped already.
_UNSAFE_IN_JSON = re.compile(f"(?!\n)[{_HIDDEN}]")

_JOINER = "\u200d"
_STYLES = "\ufe0e\ufe0f"
_KEYCAP = "\u20e3"
_SKIN = re.compile("[\U0001f3fb-\U0001f3ff]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """`text` on one line, with everything written out that is no character to be seen.

    What joins the parts of an emoji stays, between these. Backslashes stay as they are: this is to be read, not to be
    read back.
    """
    return _UNSAFE.sub(_shown, text)


def escaped_in_json(document: str) -> str:
    """The same JSON, with the same strings in it, such that a terminal can show it."""
    return _UNSAFE_IN_JSON.sub(lambda found: _units(found[0]), document)


def _units(character: str) -> str:
    data = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))


def _shown(found: re.Match[str]) -> str:
    character = found[0]
    if _within_emoji(found.string, found.start()):
        return character
    code = ord(character)
    return _SHORT.get(character) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def _within_emoji(text: str, at: int) -> bool:
    """Whether the character there does what it is for in an emoji: join two pictures, or choose how one looks."""
    character, before, after = text[at], text[:at][-3:], text[at + 1 : at + 2]
    if character in _STYLES:
        return after == _KEYCAP or _is_picture(before[-1:])
    if character == _JOINER:
        return _is_picture(_SKIN.sub("", before.rstrip(_STYLES))[-1:]) and _is_picture(after)
    return False


def _is_picture(character: str) -> bool:
    return bool(character) and unicodedata.category(character) in ("So", "Sm") and not character.isascii()
