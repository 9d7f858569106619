"""The command line: typer verbs of a few lines that call the Python API's client and hand the result to an output.

What may not live here: any knowledge of how state is stored, cut or moved (`client` calls what has it), and any heavy
import at a module's top: a verb imports what it needs when it runs, so that `--help` is there at once.
"""
