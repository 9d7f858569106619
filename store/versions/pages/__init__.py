"""Pages: objects that each describe many versions of a stage, so that searches and garbage collection open few objects.

A pure cache: manifests are authoritative. A page is ignored if it is missing or damaged, or if it belongs to a removed
app of the same name. Deleting a page loses nothing.
"""
