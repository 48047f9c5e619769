"""The buckets of an account, or of a server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from wherry.backends.pages import Pages
from wherry.backends.s3.client import connect, endpoint_of
from wherry.backends.s3.error_table import Translator
from wherry.backends.s3.options import S3Options, server_name
from wherry.errors import PermanentError
from wherry.store import BucketMeta
from wherry.uri import StoreURI


def list_buckets(given: Mapping[str, object]) -> list[BucketMeta]:
    """All of them, page by page ("ListBuckets", API Reference)."""
    options, found, pages = S3Options.read(given), [], Pages()
    errors = Translator(StoreURI("s3", ""), lambda: False, options.read_timeout_s, "Amazon S3")
    with errors.translated("list", ""):
        address = endpoint_of(options)
    errors = replace(errors, server=server_name(address) or errors.server)
    with errors.translated("list", ""), closing(connect(options, "", address)) as connection:
        extra: dict[str, Any] = {}
        while True:
            answer = connection.client.list_buckets(**extra)
            for bucket in answer.get("Buckets", []):
                created = bucket.get("CreationDate")
                found.append(BucketMeta(bucket["Name"], None if created is None else created.timestamp()))
            if not (token := answer.get("ContinuationToken")):
                return found
            if pages.is_endless(token, len(answer.get("Buckets", []))):
                raise PermanentError("the server gives the same page of the listing again: it has no end")
            extra = {"ContinuationToken": token}
