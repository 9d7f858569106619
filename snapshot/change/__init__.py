"""A decided change of all stages at one cut: migrations, edits, first versions of clones, the switch of a promotion.

`decide` functions are pure; programs come in as values (`state.fits`), since only `pipeline` knows Spark. The changes
are committed by compare-and-swap, as batches are. Not here: the verbs that ask for them (`operations`).
"""
