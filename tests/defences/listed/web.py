"""Defences of the page of `sapo web` in `sapo_edge/cli/web/`: against other pages, other users, and noise."""

from __future__ import annotations

from tests.defences.defence import Defences

server = Defences("sapo_edge/cli/web/server.py", "tests/tui/test_serve.py")

DEFENCES = (
    server(
        "the page's address is a secret",
        'first != "download" and not hmac.compare_digest(os.fsencode(first), self.token.encode())',
        "False",
        "test_without_the_token_there_is_nothing",
    ),
    server.condition(
        "other pages may not use the page",
        'if request.headers.get("Origin", f"http://{host}") != f"http://{host}":',
        "test_another_page_is_turned_away_even_with_the_token",
    ),
    server.condition(
        "a websocket says where it comes from",
        'if "Origin" not in request.headers:',
        "test_another_page_is_turned_away_even_with_the_token",
    ),
    server(
        "length of a message of a page",
        ", max_msg_size=MAX_MESSAGE_BYTES",
        ", max_msg_size=0",
        "test_what_no_page_sends_ends_that_session_alone",
    ),
    server.condition("apps at a time", "if len(self._sessions) >= MAX_SESSIONS:", "test_a_few_pages_at_a_time"),
    server(
        "scripts of the page have its secret",
        "script-src 'self' 'nonce-{nonce}';",
        "script-src 'self' 'unsafe-inline';",
        "test_the_page_names_no_other_host_and_may_load_from_none",
    ),
    server(
        "each page has a secret of its own",
        "nonce = secrets.token_urlsafe(16)",
        'nonce = 22 * "x"',
        "test_the_page_names_no_other_host_and_may_load_from_none",
    ),
    server(
        "no form is sent elsewhere",
        "form-action 'none'; ",
        "",
        "test_the_page_names_no_other_host_and_may_load_from_none",
    ),
    server(
        "no address is read from another base",
        "base-uri 'none'; ",
        "",
        "test_the_page_names_no_other_host_and_may_load_from_none",
    ),
    server(
        "the page's parameters are numbers",
        'min(max(to_int(request.query.get("fontsize", ""), 15), 8), 40)',
        'request.query.get("fontsize", "15")',
        "test_the_page_names_no_other_host_and_may_load_from_none",
    ),
    server(
        "a file is of the type that is said",
        '    headers["X-Content-Type-Options"] = "nosniff"\n',
        "",
        "test_the_page_names_no_other_host_and_may_load_from_none",
    ),
    server(
        "other pages may not load the page's files",
        '    headers["Cross-Origin-Resource-Policy"] = "same-origin"\n',
        "",
        "test_the_page_names_no_other_host_and_may_load_from_none",
    ),
)
