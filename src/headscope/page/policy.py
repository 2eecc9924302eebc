"""Security headers of the served page: only its own script and style, and requests only to its own server."""

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
    """The page's Content-Security-Policy as a header, which also forbids framing the page."""
    meta = META.search(page[:4096].decode("utf-8", "replace"))
    if meta is None:
        raise HeadscopeError(
            "the built page has no Content-Security-Policy",
            where="page/static/page.html",
            advice="rebuild it: cd web && npm run build",
        )
    return f"{meta[1]}; frame-ancestors 'none'"
