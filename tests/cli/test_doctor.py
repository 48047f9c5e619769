"""The doctor finds what is wrong, says it in plain words, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine
from lax_s3 import Flaw, lax_server
from servers.proxy import When, fault_proxy, gcs_error
from servers.real import S3Server, Server
from support import end_agent, file_of
from wherry.cli.doctor import Finding, Level
from wherry.cli.doctor_store import examine_store
from wherry.config import RetryConfig
from wherry.errors import UploadFailed
from wherry.store.registry import open_store
from wherry.uploader import Uploader
from wherry.uri import parse_uri


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def _findings(
    line: CommandLine, *arguments: object, options: dict[str, object] | None = None, expected: int = 0
) -> dict[str, Any]:
    """What the doctor says as JSON, by what was looked at."""
    given = () if options is None else ("--options-file", "-")
    out, err = line.run("doctor", *arguments, *given, "--json", stdin=json.dumps(options), expected=expected)
    assert "" == err
    found = json.loads(out)
    assert (expected == 0) is found["healthy"]
    return {finding["what"]: finding for finding in found["findings"]}


def _examined(uri: str, options: Mapping[str, object]) -> dict[str, Finding]:
    """What it finds in a store that is asked once."""
    return {finding.what: finding for finding in examine_store(parse_uri(uri), options, RetryConfig(call_deadline_s=0))}


def _keys(server: S3Server, prefix: str = "") -> list[str]:
    with open_store(parse_uri(f"s3://{server.bucket}"), server.options) as store:
        return [meta.key for meta in store.list(prefix)]


def test_healthy_endpoint_can_do_everything_and_keeps_no_probe(line: CommandLine, seaweedfs_server: S3Server) -> None:
    found = _findings(line, f"s3://{seaweedfs_server.bucket}/doctor/a", options=seaweedfs_server.options)
    steps = [
        "write",
        "describe",
        "metadata",
        "checksum",
        "read",
        "read a range",
        "damage",
        "list",
        "parts",
        "create once",
        "delete",
    ]
    levels = {what: finding["level"] for what, finding in found.items()}
    # SeaweedFS decides races of objects in parts by chance, which a trial nearly always finds.
    assert {**dict.fromkeys(steps, "ok"), "create once": levels["create once"]} == levels
    assert "computed by the store itself" in found["checksum"]["text"]
    assert found["write"]["took_ms"] > 0
    assert [] == _keys(seaweedfs_server, "doctor/")


def test_endpoint_that_ignores_conditions_is_found_out(line: CommandLine, juicefs_server: S3Server) -> None:
    """And that the weaker way is taken: look, then write."""
    found = _findings(line, f"s3://{juicefs_server.bucket}", options=juicefs_server.options)
    assert "warn" == found["create once"]["level"]
    assert "looked up first, then written" in found["create once"]["text"]
    assert "both may succeed" in found["create once"]["text"]
    assert "names of its own" in found["create once"]["remedy"]
    assert "read back" in found["checksum"]["text"]
    assert "not looked for by the store" in found["damage"]["text"]
    assert "server" not in found
    assert [] == [key for key in _keys(juicefs_server) if "doctor" in key]


def test_an_option_that_forbids_conditions_is_told_of_a_server_that_keeps_them(
    line: CommandLine, seaweedfs_server: S3Server
) -> None:
    options = seaweedfs_server.options | {"conditional_writes": False}
    assert "looked up first" in _findings(line, f"s3://{seaweedfs_server.bucket}", options=options)["create once"]["text"]


@pytest.mark.parametrize(
    ("flaw", "what", "level", "text"),
    [
        ("ignores conditions", "create once", "warn", "looked up first"),
        ("ignores conditions of completes", "create once", "warn", "large objects are only looked up first"),
        ("echoes checksums", "checksum", "ok", "read back"),
        ("drops metadata", "metadata", "ok", "not kept, but the checksum is"),
        ("has no parts", "parts", "ok", "sent in one piece"),
        ("may not delete", "server", "warn", "could not be tried"),
    ],
)
def test_what_a_server_lacks_is_told(flaw: Flaw, what: str, level: str, text: str) -> None:
    with lax_server(flaw) as server:
        options: dict[str, object] = {
            "endpoint_url": f"http://127.0.0.1:{server.server_port}",
            "aws_access_key_id": "KEY",
            "aws_secret_access_key": "SECRET",
        }
        found = _examined("s3://bucket/run", options)[what]
        assert (level, True) == (found.level.value, text in found.text)
        assert flaw == "may not delete" or not server.objects


@pytest.mark.parametrize(
    ("changed", "bucket", "code", "text", "remedy"),
    [
        ({"aws_secret_access_key": "wrong-secret-key"}, "", 5, "SignatureDoesNotMatch", "access key"),
        ({"aws_access_key_id": "UNKNOWN"}, "", 5, "InvalidAccessKeyId", "access key"),
        ({"aws_access_key_id": None, "aws_secret_access_key": None}, "", 5, "credentials", "AWS_ACCESS_KEY_ID"),
        ({}, "no-such-bucket", 3, "NoSuchBucket", "create the bucket"),
        ({"endpoint_url": "http://127.0.0.1:1"}, "", 1, "127.0.0.1:1", "nothing listens there"),
        ({"endpoint_url": "http://no-such-host.invalid"}, "", 1, "no-such-host.invalid", "DNS"),
        ({"endpoint_url": "https://127.0.0.1:{port}"}, "", 1, "SSL", "http:// only"),
        ({"endpoint_url": "127.0.0.1"}, "", 2, "endpoint_url", ""),
        ({"colour": "red"}, "", 2, "colour", ""),
    ],
)
def test_what_is_wrong_is_said_with_the_remedy(
    seaweedfs_server: S3Server, changed: dict[str, str | None], bucket: str, code: int, text: str, remedy: str
) -> None:
    options = seaweedfs_server.options | {
        name: value and value.format(port=seaweedfs_server.port) for name, value in changed.items()
    }
    uri = f"s3://{bucket or seaweedfs_server.bucket}/x"
    (finding,) = _examined(uri, {n: v for n, v in options.items() if v is not None}).values()
    assert (Level.BAD, code) == (finding.level, finding.exit)
    assert text in finding.text
    assert remedy in finding.remedy
    assert seaweedfs_server.secret_key not in repr(finding)


def test_certificate_of_an_unknown_authority_is_named(seaweedfs_tls: S3Server) -> None:
    uri = f"s3://{seaweedfs_tls.bucket}/tls"
    assert "delete" in _examined(uri, seaweedfs_tls.options)
    options = {name: value for name, value in seaweedfs_tls.options.items() if name != "verify"}
    remedy = _examined(uri, options)["write"].remedy
    for text in ("the certificate is not trusted (self-signed", "-o verify=/path/to/ca.pem", "$AWS_CA_BUNDLE"):
        assert text in remedy


def test_http_to_a_port_that_speaks_tls_is_found_out(seaweedfs_tls: S3Server) -> None:
    options = seaweedfs_tls.options | {"endpoint_url": str(seaweedfs_tls.options["endpoint_url"]).replace("https", "http")}
    remedy = _examined(f"s3://{seaweedfs_tls.bucket}/tls", options)["write"].remedy
    assert "the server speaks TLS on this port: write https:// in endpoint_url" == remedy


def test_a_certificate_that_is_not_verified_is_warned_of_once(line: CommandLine, seaweedfs_tls: S3Server) -> None:
    (line.folder / "options.json").write_text(json.dumps(seaweedfs_tls.options | {"verify": False}))
    uri = f"s3://{seaweedfs_tls.bucket}/{line.folder.name}/"
    file_of(line.folder / "a", 10)
    with end_agent(line.spool):
        for arguments in (("put", "a", uri), ("ls", uri), ("doctor", uri)):
            _, err = line.run(*arguments, "--options-file", "options.json")
            assert 1 == err.count("verify=false")
            assert "InsecureRequestWarning" not in err
        assert "InsecureRequestWarning" not in (line.spool / "agent.log").read_text()


def test_a_denied_gcs_bucket_has_a_remedy(line: CommandLine, fake_gcs_server: Server) -> None:
    plan = [When("POST", ".*", gcs_error(403, "forbidden", "x@y.iam does not have storage.objects.create access"), times=99)]
    with fault_proxy("127.0.0.1", fake_gcs_server.port, plan) as proxy:
        options: dict[str, object] = {"endpoint_url": proxy.url, "anonymous": True}
        found = _findings(line, f"gs://{fake_gcs_server.bucket}/x", options=options, expected=5)["write"]
    assert "does not have storage.objects.create access" in found["text"]
    assert "roles/storage.objectUser" in found["remedy"]
    assert f"gs://{fake_gcs_server.bucket} " in found["remedy"]


def test_a_url_is_never_wrapped(line: CommandLine) -> None:
    folder = "a-folder-with-a-very-long-name" * 5
    out, _ = line.run("doctor", f"{folder}/run")
    assert f"{folder}/run/wherry-doctor-" in out
    url = re.search(rf"file://\S*{folder}/run/wherry-doctor-[0-9a-f]{{16}}-object", out)
    assert url is not None, out


def test_local_folder_is_examined_and_left_as_it_was(line: CommandLine) -> None:
    file_of(line.folder / "dest/mine", 10)
    for place in ("dest", "not/there/yet"):
        assert "the object is gone" == _findings(line, place)["delete"]["text"]
    assert ["dest", "dest/mine"] == sorted(str(path.relative_to(line.folder)) for path in line.folder.rglob("*"))


def test_probe_is_deleted_when_the_examination_is_broken_off(tmp_path: Path) -> None:
    examination = examine_store(parse_uri(tmp_path / "dest"), {})
    assert "write" == next(examination).what
    assert 1 == len(list((tmp_path / "dest").iterdir()))
    examination.close()
    assert [] == list(tmp_path.iterdir())


def test_each_step_that_is_denied_is_told(tmp_path: Path) -> None:
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest/file").write_text("no folder")
    (finding,) = examine_store(parse_uri(tmp_path / "dest/file/below"), {})
    assert Level.BAD is finding.level
    assert "write" == finding.what


def test_people_get_lines_that_fit_a_terminal(line: CommandLine) -> None:
    out, _ = line.run("doctor", "dest")
    assert out.startswith("ok   write ")
    assert all(len(text) <= 80 or "/" in text.split()[-1] for text in out.splitlines()), "what is longer ends with a URL"


def test_spool_that_is_not_made_yet_is_examined_and_not_made(line: CommandLine) -> None:
    found = _findings(line)
    assert {"place", "space", "snapshots", "journal"} <= set(found)
    assert "none yet" in found["journal"]["text"]
    assert [] == list(line.folder.iterdir())


def test_spool_in_use_is_examined(line: CommandLine) -> None:
    with end_agent(line.spool):
        file_of(line.folder / "a", 10)
        file_of(line.folder / "dest/a", 10)
        with Uploader(line.folder / "dest", spool=line.spool) as uploader, pytest.raises(UploadFailed):
            uploader.put(line.folder / "a", "a").result(60)
        before = sorted(line.spool.iterdir())
        found = _findings(line)
        assert "0 to send, 0 done, 1 failed" in found["journal"]["text"]
        assert "warn" == found["failed"]["level"]
        assert set(before) >= set(line.spool.iterdir()) - {line.spool / "journal.db-shm", line.spool / "journal.db-wal"}


def test_spool_in_memory_is_warned_of(line: CommandLine) -> None:
    found = _findings(line, "--spool", f"/dev/shm/wherry-test-{os.getpid()}")
    assert "lost at a reboot" in found["file system"]["text"]
    assert not Path(f"/dev/shm/wherry-test-{os.getpid()}").exists()


def test_place_that_cannot_hold_a_spool_is_bad(line: CommandLine) -> None:
    (line.folder / "file").write_text("no folder")
    assert "bad" == _findings(line, "--spool", line.folder / "file/spool", expected=8)["place"]["level"]


def test_damaged_journal_is_found(line: CommandLine) -> None:
    line.spool.mkdir(mode=stat.S_IRWXU)
    (line.spool / "journal.db").write_bytes(b"rubbish " * 1000)
    assert "damaged" in _findings(line, expected=8)["journal"]["text"]
