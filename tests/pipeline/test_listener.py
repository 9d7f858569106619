"""The listener of a run that passes its events on to several listeners."""

import inspect

import pytest
from slackwater.pipeline.listener import Callbacks, Listener, Listeners

EVENTS = [name for name in vars(Listener) if not name.startswith("_")]


class Recorder(Listener):
    def __init__(self, name: str, heard: list[tuple[str, str, object]]) -> None:
        for event in EVENTS:
            setattr(self, event, lambda *args, event=event, **how: heard.append((name, event, (args, how))))


@pytest.mark.parametrize("event", EVENTS)
def test_each_event_reaches_all_listeners_in_order(event: str) -> None:
    heard: list[tuple[str, str, object]] = []
    parameters = list(inspect.signature(getattr(Listener, event)).parameters.values())[1:]
    args = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
    how = {each.name: each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    getattr(Listeners(Recorder("first", heard), None, Recorder("second", heard), Listener()), event)(*args, **how)
    assert heard == [(name, event, (tuple(args), how)) for name in ("first", "second")]


def test_callbacks_are_called_for_activities_and_not_for_their_end() -> None:
    doing: list[str] = []
    listener = Listeners(Callbacks(doing.append))
    listener.on_activity("starting Spark")
    listener.on_activity("")
    listener.on_ending()
    assert doing == ["starting Spark"]
