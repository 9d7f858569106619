"""Command line of slackwater: short typer verbs that call the Python API and print the result.

Code that knows how state is stored, cut or moved is below `client`. A verb imports heavy modules only when it runs, so
that `--help` is fast.
"""
