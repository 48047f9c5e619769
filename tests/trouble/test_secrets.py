"""A backend whose errors quote the secret that it was given: nowhere in the spool, and in no exception of ours, does it show."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from support import run_script, spool_texts

SECRET = "hunter2/hunter2+hunter2=="

#: A third party's store. How it fails stands in the key.
BACKEND = """
from urllib.parse import quote
from wherry.errors import AccessDeniedError, TransientError
from wherry.backends.memory import MemoryStore
from wherry.uri import StoreURI

class LeakyStore(MemoryStore):
    def __init__(self, uri, options):
        super().__init__(uri, {})
        self.secret = options["password"]

    def put_file(self, key, path, *put):
        if "denied" in key:
            raise AccessDeniedError(f"refused: password={self.secret}")
        if "transient" in key:
            raise TransientError(f"reset by peer: GET /?password={quote(self.secret, safe='')}")
        if "unforeseen" in key:
            raise RuntimeError(f"vendor bug with {self.secret!r}")
        return super().put_file(key, path, *put)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    info = folder / "leaky-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leaky\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[wherry.backends]\nleaky = leaky_store:LeakyStore\n")
    (folder / "leaky_store.py").write_text(BACKEND)
    return folder


def test_no_secret_is_written_down_whatever_goes_wrong(tmp_path: Path, site: Path) -> None:
    text = """
    import os, sys, wherry
    from pathlib import Path
    from support import IMPATIENT, end_agent

    spool = Path(sys.argv[1])
    options = {"password": os.environ.pop("SECRET")}
    config = wherry.Config(retry=wherry.RetryConfig(0.2, 0.05, 0.001, 0.01))
    with end_agent(spool):
        uploader = wherry.Uploader("leaky://host", storage_options=options, spool=spool, config=config)
        for name in ("denied", "transient", "unforeseen", "good"):
            uploader.open(name).close()
        try:
            uploader.flush(60.0)
        except wherry.UploadFailed as error:
            print(error)
        print(uploader, uploader.config, uploader.journal.queries.jobs(), uploader.journal.queries.stores())
        assert uploader.counts().done == 1, uploader.journal.queries.jobs()
        uploader.close()
    """
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    said = run_script(textwrap.dedent(text), tmp_path / "spool", env={"PYTHONPATH": path, "SECRET": SECRET})
    assert "3 uploads failed" in said
    assert 3 <= said.count("***")
    found = {**spool_texts(tmp_path / "spool"), "output": said.encode()}
    assert "agent.log" in found
    assert [] == [name for name, kept in found.items() if b"hunter2" in kept]
    log = found["agent.log"].decode()
    assert "RuntimeError: vendor bug with '***'" in log
    assert "Traceback" in log


def test_no_object_shows_a_secret_where_it_is_printed(tmp_path: Path) -> None:
    """As pytest, rich and reporters of crashes print what a traceback's frames have."""
    text = """
    import gc, os, sys, wherry

    secret = os.environ["SECRET"]
    options = {"aws_access_key_id": "id", "aws_secret_access_key": secret, "endpoint_url": "http://127.0.0.1:1"}
    uploader = wherry.Uploader("s3://bucket/run", storage_options=options, spool=sys.argv[1])
    assert uploader.store.capabilities is not None
    ours = [one for one in gc.get_objects() if str(type(one).__module__).startswith("wherry.")]
    print(len(ours) > 20, [type(one).__name__ for one in ours if secret in repr(one)])
    """
    assert "True []\n" == run_script(textwrap.dedent(text), tmp_path / "spool", env={"SECRET": SECRET})
