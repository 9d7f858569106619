"""Names of apps after promotions, computed from the name objects alone."""

from hypothesis import given
from hypothesis import strategies as st
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import apps

FOLDERS = ("a", "b", "c")


@given(st.lists(st.sampled_from([*FOLDERS, "back", "withdrawn"]), max_size=12))
def test_an_app_is_called_by_the_name_it_has_or_lost_but_not_by_one_it_gave_back(steps: list[str]) -> None:
    store, stack, number, was_back = MemoryStore(), ["name"], 0, True
    held = [(0, "name")]
    for step in steps:
        has, back = stack[-1], step == "back"
        if (back and was_back) or step == has:
            continue
        number += 1
        if step == "withdrawn":
            folder = has
        else:
            was_back = back
            stack = stack[:-1] if back else [*(each for each in stack if each != step), step]
            folder = stack[-1]
        apps.PROMOTION_OUTCOMES.add(store, apps.PromotionOutcome("name", number, folder, has, "t", number, back))
        held.append((number, folder))
    called = apps.promoted_names(store)
    assert called.keys() == {*stack} - ({"name"} if stack[-1] == "name" else set())
    for folder, name in called.items():
        assert apps.folder_of(store, name) == folder
        assert ("~" in name) == (folder != stack[-1])
    names = {folder: apps.find_promoted_name(store, folder) for folder in ("name", *FOLDERS)}
    assert names == {folder: "name" if folder == stack[-1] != "name" else "" for folder in names}
    for time_ms, folder in held:
        assert apps.current_owner(store, folder, time_ms) == stack[-1]
    assert apps.current_owner(store, "another", number) == "another"
