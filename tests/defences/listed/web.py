"""Defences of the page of `sapo serve` in `sapo_edge/cli/web/`: against other pages, other users, and noise."""

from __future__ import annotations

from tests.defences.defence import Defence

_SERVER = "sapo_edge/cli/web/server.py"
_TESTS = "tests/tui/test_serve.py::"
_HEADERS = (_TESTS + "test_the_page_names_no_other_host_and_may_load_from_none",)
_OTHERS = (_TESTS + "test_another_page_is_turned_away_even_with_the_token",)

DEFENCES = (
    Defence(
        "the page's address is a secret",
        _SERVER,
        'first != "download" and not hmac.compare_digest(os.fsencode(first), self.token.encode())',
        "False",
        (_TESTS + "test_without_the_token_there_is_nothing",),
    ),
    Defence(
        "other pages may not use the page",
        _SERVER,
        '        if request.headers.get("Origin", f"http://{host}") != f"http://{host}":\n',
        "        if False:\n",
        _OTHERS,
    ),
    Defence(
        "a websocket says where it comes from",
        _SERVER,
        '        if "Origin" not in request.headers:\n',
        "        if False:\n",
        _OTHERS,
    ),
    Defence(
        "length of a message of a page",
        _SERVER,
        ", max_msg_size=MAX_MESSAGE_BYTES",
        ", max_msg_size=0",
        (_TESTS + "test_what_no_page_sends_ends_that_session_alone",),
    ),
    Defence(
        "apps at a time",
        _SERVER,
        "        if len(self._sessions) >= MAX_SESSIONS:\n",
        "        if False:\n",
        (_TESTS + "test_a_few_pages_at_a_time",),
    ),
    Defence(
        "scripts of the page have its secret",
        _SERVER,
        "script-src 'self' 'nonce-{nonce}'; ",
        "script-src 'self' 'unsafe-inline'; ",
        _HEADERS,
    ),
    Defence(
        "each page has a secret of its own",
        _SERVER,
        "        nonce = secrets.token_urlsafe(16)\n",
        '        nonce = 22 * "x"\n',
        _HEADERS,
    ),
    Defence("no form is sent elsewhere", _SERVER, "form-action 'none'; ", "", _HEADERS),
    Defence("no address is read from another base", _SERVER, "base-uri 'none'; ", "", _HEADERS),
    Defence(
        "the page's parameters are numbers",
        _SERVER,
        'min(max(to_int(request.query.get("fontsize", ""), 15), 8), 40)',
        'request.query.get("fontsize", "15")',
        _HEADERS,
    ),
    Defence(
        "a file is of the type that is said",
        _SERVER,
        '    headers["X-Content-Type-Options"] = "nosniff"\n',
        "",
        _HEADERS,
    ),
    Defence(
        "other pages may not load the page's files",
        _SERVER,
        '    headers["Cross-Origin-Resource-Policy"] = "same-origin"\n',
        "",
        _HEADERS,
    ),
)
