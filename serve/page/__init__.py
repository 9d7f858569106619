"""The page on which a person looks: its files, served as they lie here, and what it asks beside other clients.

`static/` is plain ES modules, without a build step; `static/vendor/` is others' work, as its README says. What may not
live here: what is read and decided, which is the library's, and anything that another host would have to send.
"""
