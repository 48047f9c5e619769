"""Which methods of a base class an object has made its own."""

from __future__ import annotations


def overrides(who: object, name: str, base: type) -> bool:
    """Whether `who` has a `name` that is not the one of `base`, in its class or set on itself."""
    return name in vars(who) or getattr(type(who), name, None) is not getattr(base, name)
