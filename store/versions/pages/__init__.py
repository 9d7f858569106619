"""Pages: objects that describe many versions of a stage each, so that searches and garbage collection open few objects.

A pure cache: manifests are the truth. A page that is missing, damaged or of another app of this name is ignored, and
deleting one loses nothing.
"""
