"""Command line of slackwater: short typer verbs that call the Python API and print the result.

Not here: knowledge of how state is stored, cut or moved, which is below `client`; and heavy imports at a module's
top. A verb imports what it needs when it runs, so that `--help` is fast.
"""
