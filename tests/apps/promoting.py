"""A runner without Spark, for tests that promote one app over another and kill the runner of one of them.

`python promoting.py STORE BROKERS NAME TOPIC OUT` runs the app NAME until the process is stopped. Claims and batches
come from `tests.operations.staging.promote.runners`; publishers are the product's.
"""

import dataclasses
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from slackwater.errors import Unavailable
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.publish.publishers import Publishers
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps
from slackwater.store.versions.manifest import Manifest

from tests.operations.staging.promote.runners import STAGES, Runner, program, started

BATCH_S = 0.1
BEAT_S = 15


def main(root: str, brokers: str, name: str, topic: str, out: str) -> None:
    store, kafka = open_store(root), open_kafka(brokers)
    folder = apps.folder_of(store, name)
    declared = dataclasses.replace(program(folder, topic, out), name=name)
    runner = started(Runner(store, kafka, declared, random.Random(), time.monotonic))

    def heads() -> dict[str, Manifest]:
        return {stage: runner.committers[stage].head for stage in STAGES}

    stages, info = declared.stages_in_order(), apps.read_app(store, folder)
    publishers = Publishers(store, info, kafka, stages, heads(), accept_loss=False, patience_s=60)
    publishers.start()
    sys.stdout.write("runs\n")
    sys.stdout.flush()
    beat_due = time.monotonic() + BEAT_S
    while True:
        began = time.monotonic()
        try:
            if began > beat_due:
                runner.write_heartbeat()
                beat_due = began + BEAT_S
            runner.look()
            publishers.set_prompt_storing(enabled=runner.held)
            if publishers.replace_threads(heads()):
                publishers.start()
            for stage in STAGES:
                runner.begin(stage, 100_000)
                runner.end(stage)
                publishers.on_version(heads()[stage])
        except Unavailable:
            pass
        publishers.check()
        time.sleep(max(0.0, BATCH_S - (time.monotonic() - began)))


if __name__ == "__main__":
    main(*sys.argv[1:])
