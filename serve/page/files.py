"""The files of the page, as they lie in `static/`: in memory, with an ETag each, and a policy that lets in no other.

The page is nothing that a token protects: whatever it shows, it asks for as any client does.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""What is served; other files, such as licences, are not."""
_HEADERS = {
    # Values of tables are text on the page; if one ever were not, it could load and run nothing, and send nothing away.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    media_type: str
    etag: str

    async def __call__(self, request: Request) -> Response:
        # Browsers ask for the icon at each step of a page.
        kept = "max-age=86400" if self.media_type == _TYPES[".svg"] else "no-cache"
        headers = _HEADERS | {"etag": self.etag, "cache-control": kept}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        return Response(self.body, 200, headers, self.media_type)


def routes() -> list[Route]:
    """A route for each file, `/page/…`; for the page itself `/`."""
    found = []
    for path in sorted(STATIC.rglob("*")):
        if (media_type := _TYPES.get(path.suffix)) is None:
            continue
        body = path.read_bytes()
        file = _File(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
        name = path.relative_to(STATIC).as_posix()
        found.append(Route("/" if name == "index.html" else f"/page/{name}", file.__call__, methods=["GET"]))
    return found
