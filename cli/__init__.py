"""Command line of slackwater: short typer verbs that call the Python API and print the result.

Logic about stored state belongs to `client` and the packages below it. A verb imports heavy modules only when it runs,
so that `--help` is fast.
"""
