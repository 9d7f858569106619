#!/usr/bin/env bash
# The step of action.yml: try $PROGRAM, and keep one comment on the pull request up to date.
#
# Exit code 0: nothing differs. Else rows differ, or the trial failed; the comment says which.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"; git worktree prune' EXIT
report=$work/trial.md errors=$work/errors.txt base=$work/base
words=("$APP" --code "$PROGRAM" --from "$APP@$FROM" --md "$report")
while IFS= read -r word; do
  [ -z "$word" ] || words+=("$word")
done <<< "$ARGS"
# The program before the pull request with the modules that it imports, unless the pull request adds it.
if [ -n "$BASE" ] && git worktree add --quiet --detach "$base" "$BASE" && [ -f "$base/$PROGRAM" ]; then
  words+=(--before "$base/$PROGRAM")
else
  echo "no $PROGRAM before this pull request: compared with the app's tables" >&2
fi
slackwater trial "${words[@]}" 2> "$errors"
code=$?
cat "$errors" >&2
if [ ! -s "$report" ]; then
  { echo "The trial of \`$PROGRAM\` failed:"; echo '```'; cat "$errors"; echo '```'; } > "$report"
fi
cat "$report" >> "$GITHUB_STEP_SUMMARY"
if [ -n "$PULL_REQUEST" ]; then
  # --edit-last makes a comment where there is none yet.
  gh pr comment "$PULL_REQUEST" --body-file "$report" --edit-last --create-if-none || exit 1
fi
exit "$code"
