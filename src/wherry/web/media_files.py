"""Files of a run: images, sound, video. A file gets one of a few types, by its name, and is never a page or a script."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from wherry.runs import MediaItem
from wherry.web.site import Site

#: What a browser may show of a bucket. SVG and HTML could hold scripts: they are not here.
_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
}
#: One answer holds this much at most. Players ask for the next range by themselves.
MOST_BYTES = 16 * 2**20
#: Larger media are shown when they are asked for, not with the page.
SHOWN_AT_ONCE_BYTES = 4 * 2**20
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


def type_of(path: str) -> str | None:
    """The content type of a name; None for what is only handed over as a file."""
    return _TYPES.get(PurePosixPath(path).suffix.lower())


def file(request: Request) -> Response:
    """Answer with a file that the run's media index names, or with the range of it that is asked for."""
    site: Site = request.app.state.site
    run = site.run(request.query_params.get("id", ""))
    path = request.query_params.get("path", "")
    item = _find(run.media(), path)
    if item is None:
        return PlainTextResponse("The media index of this run names no such file.\n", 404)
    headers = {
        "accept-ranges": "bytes",
        "content-disposition": _disposition(path, is_shown=type_of(path) is not None),
        "content-security-policy": "default-src 'none'; sandbox",
        "cache-control": "private, max-age=3600",
    }
    kind = type_of(path) or "application/octet-stream"
    asked = _RANGE.fullmatch(request.headers.get("range", ""))
    if asked is None:
        if item.size_bytes > MOST_BYTES:
            text = f"This file has {item.size_bytes:,} bytes; without a range, at most {MOST_BYTES:,} are sent.\n"
            return PlainTextResponse(text, 413)
        return Response(run.read_file(path, 0, MOST_BYTES), media_type=kind, headers=headers)
    begin = int(asked[1])
    end = min(int(asked[2]) + 1 if asked[2] else item.size_bytes, item.size_bytes, begin + MOST_BYTES)
    if begin >= end:
        return PlainTextResponse("The file has no such range.\n", 416, {"content-range": f"bytes */{item.size_bytes}"})
    data = run.read_file(path, begin, end - begin)
    headers["content-range"] = f"bytes {begin}-{begin + len(data) - 1}/{item.size_bytes}"
    return Response(data, 206, headers=headers, media_type=kind)


def _find(items: Iterable[MediaItem], path: str) -> MediaItem | None:
    return next((item for item in items if item.path == path), None)


def _disposition(path: str, *, is_shown: bool) -> str:
    name = quote(PurePosixPath(path).name, safe="")
    return f"{'inline' if is_shown else 'attachment'}; filename*=UTF-8''{name}"
