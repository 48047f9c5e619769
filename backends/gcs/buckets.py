"""The buckets of a project."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

from google.api_core.datetime_helpers import from_rfc3339

from wherry.backends.gcs.bucket import Bucket, json_object
from wherry.backends.gcs.error_table import error_in
from wherry.backends.gcs.options import GCSOptions
from wherry.backends.pages import Pages
from wherry.errors import ConfigError, PermanentError, about
from wherry.store import BucketMeta
from wherry.uri import StoreURI


def list_buckets(given: Mapping[str, object]) -> list[BucketMeta]:
    """All of the project that the option `project`, the environment or the key file names ("Buckets: list" of the JSON API)."""
    options = GCSOptions.read(given)
    project = options.project or os.environ.get("GOOGLE_CLOUD_PROJECT") or (options.key or {}).get("project_id")
    if not project:
        raise ConfigError(
            "gs:// has the buckets of a project: name it, by -o project=... or in the variable GOOGLE_CLOUD_PROJECT"
        )
    service, found, pages, token = Bucket(StoreURI("gs", ""), options), [], Pages(), ""
    with about("list", "gs://"), service.translated(makes=True), closing(service):
        while True:
            answer = service.connected().authorized.request(
                "GET",
                f"{service.endpoint}/storage/v1/b",
                params={
                    "project": project,
                    "fields": "items(name,timeCreated),nextPageToken",
                    **({"pageToken": token} if token else {}),
                },
                timeout=service.timeout_s,
                allow_redirects=False,
            )
            if answer.status_code != 200:
                raise error_in(answer)
            page = json_object(answer)
            items = page.get("items") or []
            found += [_described(item) for item in items]
            if not (token := page.get("nextPageToken", "")):
                return found
            if pages.is_endless(token, len(items)):
                raise PermanentError("the server gives the same page of the listing again: it has no end")


def _described(item: Any) -> BucketMeta:
    """ValueError for an entry without a name; a date that cannot be hides no bucket."""
    if not isinstance(item, dict) or not isinstance(name := item.get("name"), str):
        raise ValueError("an entry of the listing has no name")
    with suppress(ValueError, TypeError):
        return BucketMeta(name, from_rfc3339(item["timeCreated"]).timestamp() if "timeCreated" in item else None)
    return BucketMeta(name, None)
