"""Verbs that let others ask: serve."""

from ..options import option
from ..session import Session, verb


@verb("slackwater serve", kafka=True)
def serve(
    session: Session,
    host: str = option("ADDRESS", "Listen here.", "127.0.0.1"),
    port: int = option("PORT", "And on this port.", 8350, min=0, max=65_535),
) -> None:
    """Serve the apps of the store over HTTP."""
    from ...serve.server import serve as run
    from ...serve.service import Options

    run(session.client, host, port, Options())
