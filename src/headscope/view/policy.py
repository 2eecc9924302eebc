"""What the served page may do: nothing but its own script and style, and questions to the server it came from."""

from __future__ import annotations

import re

from headscope.errors import HeadscopeError

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
META = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">')


def server_policy(page: bytes) -> str:
    """The page's own policy as a header; and nobody may frame it."""
    found = META.search(page[:4096].decode("utf-8", "replace"))
    if found is None:
        raise HeadscopeError(
            "the built page has no Content-Security-Policy",
            where="view/static/page.html",
            advice="build it again from web/",
        )
    return f"{found[1]}; frame-ancestors 'none'"
