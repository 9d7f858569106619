"""Output of `slackwater new`."""

import shlex
from dataclasses import asdict

from ..show.document import NextCommand, Title
from ..show.formats import plural
from ..show.shown import AlreadyDone, BlockGenerator, operation_result
from .write import Project


@operation_result
def project_result(project: Project, *, dry_run: bool) -> BlockGenerator:
    """Show the files of a project, and the commands that test and run it."""
    if project.written:
        count = plural(len(project.written), "file")
        yield Title(f"{project.app}: {count} {'would be written' if dry_run else 'written'} to {project.folder}")
        yield from (f"  {path}" for path in project.written)
    else:
        yield AlreadyDone(f"{project.folder} has the project of {project.app}")
    if not dry_run:
        yield "test it, and run it:"
        yield f"  cd {shlex.quote(str(project.folder))} && pytest test_{project.module}.py"
        yield '  eval "$(slackwater dev up)" && python feed.py orders 0 20000'
        yield "  ", NextCommand(f"slackwater run {project.module}.py")
    return asdict(project)
