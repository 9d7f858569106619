"""What may befall a runner under test: `SABOTAGE=<stage>` kills it between that stage's marker and its commit.

Loaded by the app's own file, in the runner's process: production code has no hook for it.
"""

import os
import signal

from slackwater.pipeline import stage_runner
from slackwater.store.manifest import Manifest
from slackwater.store.objects import ObjectStore

_commit = stage_runner.commit.commit


def _die_before(store: ObjectStore, manifest: Manifest) -> None:
    if manifest.stage == os.environ["SABOTAGE"] and any(output.markers for output in manifest.outputs.values()):
        os.kill(os.getpid(), signal.SIGKILL)
    _commit(store, manifest)


stage_runner.commit.commit = _die_before
