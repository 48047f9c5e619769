from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wherry.backends.fsspec.store import FsspecStore
from wherry.backends.local.store import LocalStore
from wherry.errors import ConfigError, MissingExtraError
from wherry.store.registry import BACKENDS, backend_for, check_usable, open_store, own_backend, split_options
from wherry.uri import parse_uri


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An installed package that keeps the scheme ``boat://``."""
    (tmp_path / "boats.py").write_text(
        "from wherry.backends.memory import MemoryStore\n\n\nclass BoatStore(MemoryStore):\n    pass\n"
    )
    info = tmp_path / "boats-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: boats\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[wherry.backends]\nboat = boats:BoatStore\ns3 = boats:BoatStore\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "boat"
    sys.modules.pop("boats", None)


def test_local_paths_open_the_local_store(tmp_path: Path) -> None:
    with open_store(parse_uri(tmp_path)) as store:
        assert isinstance(store, LocalStore)


@pytest.mark.parametrize("text", ["memory://bucket/x", "memory:///x"])
def test_other_schemes_go_to_fsspec(text: str) -> None:
    with open_store(parse_uri(text)) as store:
        assert isinstance(store, FsspecStore)
        assert store.capabilities.process_local
    assert backend_for("memory").process_local


def test_third_party_adds_a_scheme_by_entry_point(third_party: str) -> None:
    with open_store(parse_uri(f"{third_party}://somewhere")) as store:
        assert type(store).__name__ == "BoatStore"


def test_third_party_does_not_take_our_schemes(third_party: str) -> None:
    assert backend_for("s3") is own_backend("s3")


def test_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        backend_for("nowhere")
    for word in ("nowhere", "s3://", "gs://", "sftp", "wherry.backends"):
        assert word in str(caught.value)


def test_missing_library_of_a_file_system_is_named() -> None:
    with pytest.raises(MissingExtraError, match="dropboxdrivefs"):
        open_store(parse_uri("dropbox://folder"))


@pytest.mark.parametrize(("scheme", "library", "extra"), [("s3", "boto", "s3"), ("gs", "google", "gcs")])
def test_missing_library_of_ours_names_the_extra(scheme: str, library: str, extra: str) -> None:
    """In an interpreter that finds no module of that name."""
    program = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith(sys.argv[2]) and not name.startswith('google_'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from wherry.errors import MissingExtraError\n"
        "from wherry.store.registry import open_store\n"
        "from wherry.uri import parse_uri\n"
        "try:\n    open_store(parse_uri(f'{sys.argv[1]}://bucket'), {})\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", program, scheme, library]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert f"wherry[{extra}]" in done.stdout, done.stderr


@pytest.mark.parametrize("scheme", ["file", "s3", "gs"])
def test_unknown_option_is_refused_early_and_known_ones_listed(scheme: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_usable(scheme, {"colour": "red"})
    assert "colour" in str(caught.value)
    assert sorted(backend_for(scheme).public_options)[0] in str(caught.value)


def test_unknown_option_is_refused_at_opening(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="colour"):
        open_store(parse_uri(tmp_path), {"colour": "red"})
    with pytest.raises(ConfigError, match="fsync"):
        open_store(parse_uri(tmp_path), {"fsync": "yes"})


def test_options_are_secret_unless_named_public() -> None:
    options: dict[str, object] = {"endpoint_url": "http://x", "aws_secret_access_key": "s", "region": "eu", "verify": object()}
    public, secret = split_options("s3", options)
    assert set(public) == {"endpoint_url", "region"}
    assert set(secret) == {"aws_secret_access_key", "verify"}  # what cannot be written is not written
    assert split_options("sftp", {"password": "p", "host": "h"}) == ({"host": "h"}, {"password": "p"})


@pytest.mark.parametrize("scheme", sorted(BACKENDS))
def test_no_option_is_both_public_and_secret(scheme: str) -> None:
    entry = backend_for(scheme)
    assert entry.secret_options is not None
    assert not entry.public_options & entry.secret_options


@pytest.mark.parametrize(
    ("scheme", "line"), [("az", "pip install adlfs"), ("smb", "pip install smbprotocol"), ("lakefs", "pip install lakefs-spec")]
)
def test_a_library_that_fsspec_needs_is_named_with_its_pip_line_before_anything_is_accepted(scheme: str, line: str) -> None:
    """In an interpreter that finds none of them."""
    program = (
        "import importlib.util, sys\n"
        "from wherry import Uploader\n"
        "from wherry.errors import MissingExtraError\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('adlfs', 'smbclient', 'lakefs_spec'): raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "try: Uploader(sys.argv[1] + '://container/run', spool=sys.argv[2])\n"
        "except MissingExtraError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, scheme, "unused"], capture_output=True, text=True, check=True)
    assert line in done.stdout
