"""Differences and histories equal a dictionary's, after merges, deletions, expiry, clones and collections."""

from dataclasses import replace
from itertools import islice, pairwise, product
from random import Random

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from slackwater.snapshot.diff import candidates, stored_rows
from slackwater.snapshot.diff.key_history import RowChange, VersionList, key_changes
from slackwater.snapshot.diff.moments import diff_table
from slackwater.snapshot.diff.stored_rows import KeyReader, TableSide
from slackwater.store.sst.hashing import KeyShare, normalise_keys
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Manifest

from tests.models.profiles import scaled
from tests.models.tables import Form, same_form
from tests.models.test_state_model import StateModel
from tests.models.writers import STAGE
from tests.support.collecting import fresh
from tests.support.state_rows import Values, columns

FOCUS = (
    ("merging",),
    ("merging", "expiring"),
    ("merging", "collecting", "expiring"),
    ("merging", "collecting", "copying"),
    ("merging", "dying", "copying", "expiring"),
)
PAIRS = 12
"""Number of pairs of versions that each example compares at its end."""
KEYS = 4
"""Number of keys whose history is checked."""


class DiffModel(StateModel):
    """The model of the store, extended by differences of any two versions and histories of any key."""

    def every_kept_version_shows_the_same_rows(self) -> None:
        """Disabled here, because another test covers it."""

    def each_version_is_a_valid_successor(self) -> None:
        """Disabled here, because another test covers it."""

    @rule(data=st.data())
    def compare(self, data: st.DataObject) -> None:
        places = [(app, self.any_version(data, app)) for app in (self.any_app(data), self.any_app(data))]
        self.check_diff(places[0], places[1], by_ranges=data.draw(st.booleans()), by_versions=data.draw(st.booleans()))

    @rule(data=st.data())
    def follow(self, data: st.DataObject) -> None:
        if self.written:
            form = data.draw(st.sampled_from(sorted(self.written, key=repr)), "key")
            self.check_history(self.any_app(data), form, by_ranges=data.draw(st.booleans()))

    def check_diff(self, one: tuple[str, int], other: tuple[str, int], *, by_ranges: bool, by_versions: bool) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if by_versions:
                patch.setattr(candidates, "MANIFEST_READ_BYTES", 0)
            if by_ranges:
                patch.setattr(stored_rows, "SMALL_BYTES", 0)
            sides = self.side(*one), self.side(*other)
            found = diff_table(STAGE, *sides)
            key = tuple(sides[0].key)
            share = KeyShare(key if by_ranges else key[:1], 4_000)
            some = diff_table(STAGE, *(replace(side, share=share) for side in sides))
        of_share = found.with_keys_at(np.flatnonzero(share.select_rows(found.changes.keys)))
        assert [*map(repr, some.changes)] == [*map(repr, of_share.changes)]
        assert (some.added, some.removed, some.changed) == (of_share.added, of_share.removed, of_share.changed)
        before, after = (self.states[place].shown() for place in (one, other))
        expected = {
            form: (before.get(form), after.get(form))
            for form in before.keys() | after.keys()
            if before.get(form) != after.get(form)
        }
        changes = {same_form(tuple(each.key.values())): each for each in found.changes}
        assert {form: (row(each.before), row(each.after)) for form, each in changes.items()} == expected
        assert (found.added, found.removed, found.changed) == (
            sum(was is None for was, _ in expected.values()),
            sum(now is None for _, now in expected.values()),
            sum(was is not None and now is not None for was, now in expected.values()),
        )
        assert not found.about or not found.changed or self.is_large(*one)
        assert found.rows_in_both >= len(before.keys() & after.keys()) >= found.changed
        assert found.about or found.rows_in_both == len(before.keys() & after.keys())
        assert found.is_equal == (not expected)

    def is_large(self, app: str, version: int) -> bool:
        return sum(sst.bytes for sst in self.side(app, version).ssts) > 1 << 20

    def side(self, app: str, version: int) -> TableSide:
        store = fresh(self.store)
        manifest = history.read(store, app, STAGE, version)
        assert manifest.table is not None
        return TableSide(store, self.cache, manifest.table, manifest, manifest.clock_ms)

    def check_history(self, app: str, form: Form, *, by_ranges: bool) -> None:
        store, now_ms = fresh(self.store), self.store.clock_ms
        versions = VersionList(store, app, STAGE, self.heads[app])
        with pytest.MonkeyPatch.context() as patch:
            if by_ranges:
                patch.setattr(stored_rows, "SMALL_BYTES", 0)
            key = normalise_keys(columns(self.table.key, [self.written[form]]), [each.name for each in self.table.key])
            hashed = int(self.hashes.of(self.table, key)[0])
            found = list(key_changes(versions, KeyReader(store, self.cache, key, hashed), now_ms))
        shown = [(number, self.states[app, number].shown().get(form)) for number in versions.numbers]
        head = self.states[app, self.heads[app]]
        shown.append((shown[-1][0], head.shown(head.seen(now_ms)).get(form)))
        expected = [(number, earlier, was, now) for (earlier, was), (number, now) in pairwise(shown) if was != now]
        if shown[0][1] is not None:
            expected.insert(0, (shown[0][0], 0, None, shown[0][1]))
        assert [(c.version, c.after_version, row(c.before), row(c.after)) for c in found] == expected[::-1]
        for change in found:
            self.check_what_is_said(app, change, versions[0])

    def check_what_is_said(self, app: str, change: RowChange, first: Manifest) -> None:
        numbers = history.list_versions(fresh(self.store), app, STAGE)
        between = range(change.after_version + 1, change.version)
        assert change.gap == (change.after_version > 0 and len(between) > 0)
        assert not set(between) & set(numbers)
        inherits = change.after_version == 0 and (first.version > 1 or first.kind == "clone")
        assert bool(change.inherited) == inherits
        if change.expired:
            assert change.kind == "removed"

    def teardown(self) -> None:
        if hasattr(self, "heads") and hasattr(self, "cache"):
            random = Random(len(self.states))
            places = [
                (app, version)
                for app in sorted(self.heads)
                for version in history.list_versions(fresh(self.store), app, STAGE)
            ]
            pairs = list(product(places, places))
            for number, pair in enumerate(random.sample(pairs, min(PAIRS, len(pairs)))):
                self.check_diff(*pair, by_ranges=bool(number & 1), by_versions=bool(number & 2))
            forms = sorted(self.written, key=repr)
            random.shuffle(forms)
            for app, (number, form) in product(sorted(self.heads), islice(enumerate(forms), KEYS)):
                self.check_history(app, form, by_ranges=bool(number & 1))
        super().teardown()


def row(found: object) -> Values | None:
    """Return the values in the model's form."""
    return tuple(found.values()) if isinstance(found, dict) else None


@pytest.mark.parametrize("focus", FOCUS, ids=" ".join)
def test_diffs_and_histories_agree_with_the_versions(focus: tuple[str, ...]) -> None:
    machine = type("diff_" + "_".join(focus), (DiffModel,), {"focus": focus})
    run_state_machine_as_test(machine, settings=scaled(1, 25))
