"""Answers that lead to different places of the HTTP client, found by atheris, and what hypothesis makes of them."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from servers.heard import corpus, hear


def test_what_was_found_breaks_no_law() -> None:
    assert [] != corpus()
    heard = [hear(data) for data in corpus()]
    assert 10 < sum(body is not None for body in heard) < len(heard), "some are answers, some are none"


@settings(max_examples=300, deadline=None)
@given(data=st.sampled_from(corpus()), at=st.integers(0, 400), n_cut=st.integers(0, 20), new=st.binary(max_size=10))
def test_neither_does_what_is_like_it(data: bytes, at: int, n_cut: int, new: bytes) -> None:
    hear(data[:at] + new + data[at + n_cut :])
