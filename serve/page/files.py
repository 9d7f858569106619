"""Static files of the page, served from memory with ETags and a strict content security policy.

The files need no token: the page gets its data through the same routes as any client.
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
_HEADERS = {
    # The page renders values as text. If one were interpreted as HTML nevertheless, this policy would let it load, run
    # and send nothing.
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
        # Browsers request the icon at each navigation.
        cache_control = "max-age=86400" if self.media_type == _TYPES[".svg"] else "no-cache"
        headers = _HEADERS | {"etag": self.etag, "cache-control": cache_control}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        return Response(self.body, 200, headers, self.media_type)


def routes() -> list[Route]:
    file_routes = []
    for path in sorted(STATIC.rglob("*")):
        if (media_type := _TYPES.get(path.suffix)) is None:
            continue
        body = path.read_bytes()
        file = _File(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
        name = path.relative_to(STATIC).as_posix()
        file_routes.append(Route("/" if name == "index.html" else f"/page/{name}", file.__call__, methods=["GET"]))
    return file_routes
