"""Changes to all stages of an app at one cut: migrations, edits, first versions of clones, switchover of a promotion.

Plans are computed by pure functions, which take the program as a plain value (`state.fits`), since only `pipeline`
knows Spark. Changes are committed by compare-and-swap, like batches. The verbs that request changes are in
`operations`.
"""
