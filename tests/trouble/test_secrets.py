"""A backend whose errors quote the secret that it was given: nowhere in the spool, and in no exception of ours, does it show."""

from __future__ import annotations

import os
import textwrap
import traceback
from pathlib import Path

import pytest

from command_line import CommandLine
from servers.proxy import When, fault_proxy, s3_error
from support import CALLER, run_script, spool_texts
from wherry.errors import AccessDeniedError, ConfigError, StoreError
from wherry.store.registry import open_store
from wherry.uploader import Uploader
from wherry.uri import StoreURI

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

    def head(self, key):
        if "denied" in key:
            raise AccessDeniedError(f"refused: password={self.secret}")
        return super().head(key)
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
        try:
            uploader.head("denied")
        except wherry.AccessDeniedError as error:
            print(error, repr(error), error.message)
        print(uploader, uploader.config, uploader.journal.queries.jobs(), uploader.journal.queries.stores())
        assert uploader.counts().done == 1, uploader.journal.queries.jobs()
        uploader.close()
    """
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    said = run_script(textwrap.dedent(text), tmp_path / "spool", env={"PYTHONPATH": path, "SECRET": SECRET})
    assert "3 uploads failed" in said
    assert "AccessDeniedError('refused: password=***')" in said
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


#: Where a key comes from, by the name that the error must have, and what is wrong with it.
KEYS: dict[str, tuple[str, str]] = {
    "aws_session_token": ("hunter2hunter2\n", "white space"),
    "aws_secret_access_key": (" hunter2hunter2", "white space"),
    "aws_access_key_id": ("hunter2\x0bhunter2", "control character"),
    "token": ("hunter2\r\nhunter2", "line break"),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_that_no_header_takes_is_refused_before_anything_is_sent(name: str, spool_folder: Path) -> None:
    """The libraries show it in their errors, and such an error looks like one of the network."""
    value, fault = KEYS[name]
    scheme, others = ("gs", {}) if name == "token" else ("s3", {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"})
    with pytest.raises(ConfigError, match=f"'{name}'.*{fault}") as caught:
        Uploader(f"{scheme}://bucket", storage_options={**others, name: value}, spool=spool_folder, config=CALLER)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert not spool_folder.exists()


def test_a_key_of_the_environment_is_refused_by_its_variable(line: CommandLine) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "SECRET", "AWS_SESSION_TOKEN": "hunter2hunter2\n"}
    for arguments in (("ls", "s3://bucket/x/"), ("put", __file__, "s3://bucket/x")):
        said = line.refuse(*arguments, "-o", "endpoint_url=http://127.0.0.1:1", expected=2, env=keys)
        assert "AWS_SESSION_TOKEN" in said
        assert "hunter2" not in said


@pytest.mark.parametrize("sdk_only", [False, True])
@pytest.mark.parametrize("source", ["option", "profile"])
def test_what_a_server_echoes_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, sdk_only: bool) -> None:
    """Neither by the error, nor by the library's one below it, which Python prints with it."""
    echo = s3_error(403, "InvalidToken", f"the token {SECRET} is not valid")
    keys = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET", "aws_session_token": SECRET}
    if source == "profile":
        config = tmp_path / "config"
        config.write_text("[default]\n" + "".join(f"{name} = {value}\n" for name, value in keys.items()))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
        keys = {}
    with fault_proxy("127.0.0.1", 1, [When("", "", echo, times=9)]) as proxy:
        options = {"endpoint_url": proxy.url, "sdk_only": sdk_only, **keys}
        with open_store(StoreURI("s3", "bucket"), options) as store, pytest.raises(AccessDeniedError) as caught:
            store.head("key")
    assert r"the token *** is not valid" in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_what_a_library_of_fsspecs_says_is_not_shown() -> None:
    """WebHDFS has the token in the address of a request, and so in the errors of requests."""
    options = {"host": "127.0.0.1", "port": 1, "token": SECRET}
    with open_store(StoreURI("webhdfs", "127.0.0.1"), options) as store, pytest.raises(StoreError, match="delegation=") as caught:
        store.head("key")
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
