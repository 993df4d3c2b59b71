"""What a browser may do with the pages of `dtj ui` and `dtj serve`: headers of their answers.

A page may load files of its own server only: no inline script or style, no frame, and nothing from another origin.
"""

from collections.abc import Sequence


def page_headers(*, pictures_from: Sequence[str], cache: str) -> dict[str, str]:
    """Return the headers of an answer, by name.

    pictures_from: sources of pictures beside the server itself, such as `data:`. cache: the value of Cache-Control.
    """
    policy = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": " ".join(("'self'", *pictures_from)),
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": cache,
    }
