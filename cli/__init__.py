"""The command line: typer verbs of a few lines that load, call the library and hand the result to an output.

What may not live here: any knowledge of how state is stored, cut or moved (that is `store`, `snapshot` and
`pipeline`), and any heavy import at a module's top: a verb imports what it needs when it runs,
so that `--help` is there at once and nothing but `run` starts Spark.
"""
