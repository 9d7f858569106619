"""Web page of the server: its static files, and the routes that only the page uses.

`static/` holds plain ES modules without a build step; `static/vendor/` holds third-party code, as its README says.
Reads and decisions belong to the library, and the page loads nothing from another host.
"""
