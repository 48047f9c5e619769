"""Files from a bucket: only those of the media index, with types of our own, and never more than asked for."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

from servers.web_page import Page, make_runs, page_of

ENTRY = {"t": 1.0, "step": 5, "key": "planted", "kind": "image", "sha256": "", "size_bytes": 20, "shape": []}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def page(runs: Path) -> Iterator[Page]:
    run = runs / "amber"
    (runs / "secret.png").write_bytes(b"secret")
    for name in ("media/evil.svg", "media/evil.html", "media/evil.png"):
        (run / name).write_bytes(b"<script>alert(1)</script>")
    (run / "media/link.png").symlink_to(runs / "secret.png")
    planted = ("media/evil.svg", "media/evil.html", "media/evil.png", "../secret.png", "/etc/passwd", "media/../../secret.png")
    with (run / "media/index.jsonl").open("a") as index:
        index.writelines(json.dumps({**ENTRY, "path": path}) + "\n" for path in (*planted, "media/link.png"))
    with page_of(runs) as page:
        yield page


def test_an_image_arrives_as_it_is_with_its_type(page: Page) -> None:
    answer = page.get("/file?id=amber&path=media/images/samples/100.png")
    assert ("image/png", "nosniff") == (answer.headers["content-type"], answer.headers["x-content-type-options"])
    assert "sandbox" in answer.headers["content-security-policy"]
    with Image.open(io.BytesIO(answer.body)) as image:
        assert (10, 8) == image.size


@pytest.mark.parametrize(
    ("name", "kind"), [("svg", "application/octet-stream"), ("html", "application/octet-stream"), ("png", "image/png")]
)
def test_markup_is_never_a_page(page: Page, name: str, kind: str) -> None:
    answer = page.get(f"/file?id=amber&path=media/evil.{name}")
    shown = "inline" if kind == "image/png" else "attachment"
    assert (kind, shown) == (answer.headers["content-type"], answer.headers["content-disposition"].partition(";")[0])


@pytest.mark.parametrize(
    "path",
    ["../secret.png", "/etc/passwd", "media/../../secret.png", "media/link.png", "hparams.json", "media\\..\\x.png", "", "."],
)
def test_nothing_outside_of_the_media_is_handed_out(page: Page, path: str) -> None:
    answer = page.get(f"/file?id=amber&path={quote(path, safe='')}")
    assert answer.status in (400, 404)
    assert b"secret" not in answer.body.replace(b"secret.png", b"")


def test_a_player_gets_the_ranges_that_it_asks_for(page: Page, runs: Path) -> None:
    data = (runs / "amber/media/audio/tone/0.wav").read_bytes()
    path = "/file?id=amber&path=media/audio/tone/0.wav"
    answer = page.get(path, {"Range": "bytes=10-19"})
    assert (206, data[10:20], f"bytes 10-19/{len(data)}") == (answer.status, answer.body, answer.headers["content-range"])
    assert data[100:] == page.get(path, {"Range": "bytes=100-"}).body
    assert 416 == page.get(path, {"Range": f"bytes={len(data)}-"}).status
    assert data == page.get(path, {"Range": "lines=1"}).body
