"""The page for people at `/`: plain files, without a build step and without anything from another server."""

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page/drawing.js": ("drawing.js", "text/javascript; charset=utf-8"),
}
"""By path: the name in this folder, and its Content-Type."""
