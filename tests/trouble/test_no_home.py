"""A user whom the machine does not know, and who has no home: a container's, say."""

from __future__ import annotations

import json
from pathlib import Path

from servers.features import tell_spool
from servers.real import S3Server, Server
from support import end_agent, run_script

HOMELESS = ("unshare", "--user", "--map-user=54322", "--map-group=54322", "env", "--unset=HOME")
UPLOADS = """
import json, os, sys
from pathlib import Path
import wherry
from wherry.config import AgentConfig
from wherry.errors import ConfigError
from wherry.runs import Runs

folder, s3_uri, s3_options, gs_uri, gs_options = *sys.argv[1:3], json.loads(sys.argv[3]), sys.argv[4], json.loads(sys.argv[5])
os.chdir(folder)
assert "~" == os.path.expanduser("~")
Path("file").write_bytes(b"file")
Path("key").write_text("no key")
for uri, options in ((s3_uri, s3_options), (gs_uri, gs_options)):
    with wherry.Uploader(uri, storage_options=options, spool="spool") as uploader:
        print(uploader.put("file", "x").result(60).size_bytes)
        uploader.get("x", "back", overwrite=True)
with Runs(s3_uri, options=s3_options) as runs:
    print(len(list(runs.rows())))
for spool in ("~/spool", Path("~/spool")):
    wherry.Uploader("store", spool=spool, config=wherry.Config(agent=AgentConfig(run_in="caller"))).close()
print(Path("~/spool/journal.db").exists())
try:
    wherry.Uploader(gs_uri, storage_options={"credentials_file": "~/key"}, spool="spool")
except ConfigError as error:
    print(error)
"""


def test_uploads_reads_and_runs_need_no_home_and_no_name_of_the_user(
    tmp_path: Path, seaweedfs_server: S3Server, fake_gcs_server: Server
) -> None:
    tell_spool(tmp_path / "spool", seaweedfs_server)
    s3 = f"s3://{seaweedfs_server.bucket}/no-home", json.dumps(seaweedfs_server.options)
    gs = f"gs://{fake_gcs_server.bucket}/no-home", json.dumps({"endpoint_url": fake_gcs_server.url, "anonymous": True})
    with end_agent(tmp_path / "spool"):
        printed = run_script(UPLOADS, tmp_path, *s3, *gs, prefix=HOMELESS).splitlines()
    assert ["4", "4", "0", "True"] == printed[:4]
    assert "the credentials_file ~/key cannot be read" in printed[4]
