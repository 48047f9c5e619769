"""`make release-check` finds what must not be released. That it passes needs a network: CI does not run it."""

from __future__ import annotations

import pytest

import release
import wherry

DATED = "# Changelog\n\n## Unreleased\n\n## 1.2.0 (2026-11-22)\n"


def test_the_version_is_read_from_the_source() -> None:
    assert wherry.__version__ == release.source_version(release.ROOT)


@pytest.mark.parametrize(
    ("changelog", "tags", "said"),
    [
        ("## Unreleased\n", {}, "to do: date the heading"),
        (DATED, {"v1.1.0": False}, "to do: tag v1.2.0"),
        (DATED, {"v1.1.0": False, "v1.2.0": True, "nightly": True}, "tagged and dated"),
    ],
)
def test_what_is_left_to_do_is_said(changelog: str, tags: dict[str, bool], said: str) -> None:
    assert release.check_names("1.2.0", changelog, tags).startswith(said)


@pytest.mark.parametrize(
    ("changelog", "tags", "said"),
    [
        (DATED, {"v1.2.0": False}, "already released"),
        (DATED, {"v1.3.0": True}, "tagged v1.3.0, but the version is 1.2.0"),
        ("## Unreleased\n", {"v1.2.0": True}, "no '## 1.2.0"),
    ],
)
def test_version_tag_and_changelog_must_agree(changelog: str, tags: dict[str, bool], said: str) -> None:
    with pytest.raises(release.ReleaseError, match=said):
        release.check_names("1.2.0", changelog, tags)


TRACKED = {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "src/wherry/uri.py", "backends/s3/store.py", "tests/gate.py"}


def test_what_git_does_not_track_is_in_no_sdist() -> None:
    release.check_sdist(TRACKED | {"PKG-INFO"}, TRACKED)
    with pytest.raises(release.ReleaseError, match="not in git: tests/mlruns/1"):
        release.check_sdist(TRACKED | {"tests/mlruns/1"}, TRACKED)
    with pytest.raises(release.ReleaseError, match=r"not in the sdist: tests/gate\.py"):
        release.check_sdist(TRACKED - {"tests/gate.py"}, TRACKED)


def test_a_wheel_has_the_package_and_nothing_else() -> None:
    wheel = {"wherry/uri.py", "wherry/backends/s3/store.py", "wherry-1.2.0.dist-info/METADATA"}
    release.check_wheel(wheel, TRACKED)
    with pytest.raises(release.ReleaseError, match=r"only: tests/gate\.py"):
        release.check_wheel(wheel | {"tests/gate.py"}, TRACKED)
