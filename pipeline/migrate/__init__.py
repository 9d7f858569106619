"""A changed program over the app that is stored: what it declares, which Spark knows, and where it begins to read.

Also computing the past of what it added. What becomes of the stored stages is decided without Spark in
`snapshot/migrate/`.
"""
