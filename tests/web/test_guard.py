"""Who may ask the page, and what each answer says to the browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from servers.web_page import Page, log_of, page_of
from wherry.web.guard import is_own_host

PATHS = ("/", "/run?id=one", "/compare?id=one", "/data/points?id=one&key=a", "/static/style.css", "/nothing", "/favicon.ico")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with log_of(folder / "one") as log:
        log.log_metrics({"a": 1.0}, 0)
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Page]:
    with page_of(folder) as page:
        yield page


@pytest.fixture(scope="module")
def locked(folder: Path) -> Iterator[Page]:
    with page_of(folder, needs_token=True) as page:
        yield page


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_reading_is_answered(page: Page, method: str) -> None:
    assert 405 == page.get("/", method=method).status


@pytest.mark.parametrize("path", PATHS)
def test_a_name_that_leads_here_by_rebinding_is_refused(page: Page, path: str) -> None:
    answer = page.get(path, {"Host": "evil.example:8765"})
    assert (421, False) == (answer.status, b"amber" in answer.body)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1", "127.0.0.1:8765", "[::1]:8765"])
def test_this_machine_may_be_asked_through_a_tunnel(page: Page, host: str) -> None:
    assert 200 == page.get("/", {"Host": host}).status


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[", "a@b", "127.0.0.1@evil"]
)
def test_other_hosts_are_not_ours(host: str) -> None:
    assert not is_own_host(host, ["here"])


@pytest.mark.parametrize("path", PATHS)
def test_each_answer_carries_its_protection(page: Page, path: str) -> None:
    headers = page.get(path).headers
    policy = headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self';", "object-src 'none'", "frame-ancestors 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert ("nosniff", "no-referrer", "same-origin") == (
        headers["x-content-type-options"],
        headers["referrer-policy"],
        headers["cross-origin-resource-policy"],
    )


def test_only_a_notebooks_page_may_be_framed(folder: Path) -> None:
    with page_of(folder, in_frames=True) as framed:
        policy = framed.get("/").headers["content-security-policy"]
    ancestors = policy.partition("frame-ancestors ")[2]
    assert "http://localhost:*" in ancestors
    assert "*" not in ancestors.replace(":*", "")


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_shown(locked: Page, path: str) -> None:
    wrong = path + ("&" if "?" in path else "?") + "token=wrong"
    for asked, headers in ((path, {}), (wrong, {}), (path, {"Cookie": f"wherry-token-{locked.server.address.port}=wrong"})):
        assert 403 == locked.get(asked, headers).status


def test_the_token_becomes_a_cookie_and_leaves_the_address(locked: Page) -> None:
    token = locked.server.address.token
    answer = locked.get(f"/run?id=one&token={token}")
    cookie = answer.headers["set-cookie"]
    assert (303, "/run?id=one") == (answer.status, answer.headers["location"])
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    shown = locked.get("/run?id=one", {"Cookie": cookie.partition(";")[0]})
    assert (200, False) == (shown.status, (token or "").encode() in shown.body)


def test_the_way_of_the_token_never_leads_to_another_site(locked: Page) -> None:
    token = locked.server.address.token
    for path in ("//evil.example/", "///evil.example", "/%5Cevil.example"):
        where = locked.get(f"{path}?token={token}").headers["location"]
        assert (None, "") == (urlsplit(where).hostname, urlsplit(where).scheme)


def test_another_address_than_loopback_needs_a_token(folder: Path) -> None:
    with page_of(folder, host="0.0.0.0") as open_page:  # noqa: S104
        assert open_page.server.address.token
        assert 403 == open_page.get("/").status
