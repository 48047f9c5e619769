"""Which buckets an account has: the one question that is put to a service and not to a store."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import cast

from wherry.config import TERMINAL_RETRY
from wherry.errors import ConfigError
from wherry.store import BucketMeta
from wherry.store.options import Backend
from wherry.store.registry import backend_for, require_libraries
from wherry.store.retry import call_with_retry


def list_buckets(scheme: str, options: Mapping[str, object]) -> list[BucketMeta]:
    """Return the buckets that the credentials may list, by name. A person waits for them, so it gives up after seconds.

    Raises ConfigError for a scheme whose stores are no buckets, MissingExtraError, AccessDeniedError.
    """
    backend: Backend = backend_for(scheme)
    if backend.buckets is None:
        raise ConfigError(f"{scheme}:// has no buckets that could be listed: name a folder, or s3:// or gs://")
    require_libraries(scheme, backend)
    module_name, _, function_name = backend.buckets.partition(":")
    ask = cast("Callable[[Mapping[str, object]], list[BucketMeta]]", getattr(importlib.import_module(module_name), function_name))
    return sorted(call_with_retry(lambda: ask(options), config=TERMINAL_RETRY), key=lambda bucket: bucket.name)
