"""Pages: objects that each describe many versions of a stage, so that searches and collections read few objects.

Pages are only a cache: manifests are authoritative. A page is ignored if it is missing or damaged, or if it belongs to
a removed app of the same name. Deleting a page loses no data.
"""
