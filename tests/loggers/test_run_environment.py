"""The run's environment: enough to make the run again, and none of its secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from run_folders import Recorder
from support import run_script
from wherry.errors import ConfigError
from wherry.loggers import Logger, RunFolderConfig, RunFolderLogger, State
from wherry.loggers.run.run_environment import environment


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "work")
    (folder / "train.py").write_text("lr = 0.1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def of(folder: Path, variables: dict[str, str] | None = None, most: int = 2**18) -> dict[str, Any]:
    found = environment(max_diff_bytes=most, folder=folder, variables=variables or {})
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def test_it_names_code_packages_and_machine(repository: Path) -> None:
    found = of(repository, {"SLURM_JOB_ID": "77", "POD_NAME": "pod-3", "SLURM_JWT": "eyJhbGciOi", "HOME": "/h"})
    commit = git(repository, "rev-parse", "HEAD")
    clean = {"commit": commit, "branch": "work", "is_dirty": False, "changed": [], "diff": "", "diff_is_cut": False}
    assert clean == found["git"]
    assert {"SLURM_JOB_ID": "77", "POD_NAME": "pod-3"} == found["scheduler"]
    assert sys.version == found["python"]
    assert "pytest" in found["packages"]
    assert found["command"].startswith(sys.orig_argv[0])
    assert found["host"]["n_cpus"] >= 1
    assert found["host"]["memory_bytes"] > 2**20


def test_changes_are_told_up_to_the_limit(repository: Path) -> None:
    (repository / "train.py").write_text("lr = 0.2\nmax_tokens = 512\n")
    (repository / "new.py").write_text("new")
    found = of(repository)["git"]
    assert found["is_dirty"]
    assert [" M train.py", "?? new.py"] == found["changed"]
    assert "-lr = 0.1\n+lr = 0.2\n+max_tokens = 512" in found["diff"]
    cut = of(repository, most=10)["git"]
    assert (found["diff"][:10], True) == (cut["diff"], cut["diff_is_cut"])
    assert not found["diff_is_cut"]
    assert ("", True) == (of(repository, most=0)["git"]["diff"], of(repository, most=0)["git"]["is_dirty"])


def test_secrets_are_hidden_in_the_diff(repository: Path) -> None:
    code = (
        'api_key = "sk-first"\nheaders = {"hf_token": "hf-second"}\nurl = "https://me:third-pw@example.com/x"\n'
        'name = "fourth-value"\nDB_PASSWORD: fifth-pw\n'
    )
    (repository / "train.py").write_text(code)
    text = json.dumps(of(repository, {"MY_SECRET": "fourth-value"}))
    assert [] == [one for one in ("sk-first", "hf-second", "third-pw", "fourth-value", "fifth-pw") if one in text]
    assert "api_key = ***" in text


def test_secrets_that_show_what_they_are_are_hidden_under_any_name(repository: Path) -> None:
    marks = ("hf_" + "a1B2" * 8, "ghp_" + "c3D4" * 9, "AKIA" + "E5F6" * 4, "sk-proj-" + "g7H8" * 8, "xoxb-123456789012-x")
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEvery+secret/line\n-----END RSA PRIVATE KEY-----"
    (repository / "train.py").write_text("\n".join([*(f"x = '{mark}'" for mark in marks), key, "learning = 'sk-learn'"]))
    diff = of(repository)["git"]["diff"]
    assert [] == [mark for mark in (*marks, "every+secret") if mark in diff]
    assert "sk-learn" in diff
    cut = of(repository, most=len(diff))["git"]["diff"]
    assert "every+secret" not in cut


def test_files_that_hold_secrets_are_not_in_the_diff(repository: Path) -> None:
    (repository / "deploy").mkdir()
    for name in (".env", "deploy/.env.prod", "deploy/tls.PEM", "model.py"):
        (repository / name).write_text("before\n")
    git(repository, "add", "-f", ".")
    git(repository, "commit", "-q", "-m", "two")
    for name in (".env", "deploy/.env.prod", "deploy/tls.PEM", "model.py"):
        (repository / name).write_text(f"after in {name}\n")
    diff = of(repository / "deploy")["git"]["diff"]
    assert ["after in model.py"] == [line[1:] for line in diff.splitlines() if line.startswith("+after")]


def test_outside_of_a_repository_there_is_no_git(tmp_path: Path) -> None:
    assert of(tmp_path)["git"] is None


def test_secrets_are_hidden_in_the_command_line(tmp_path: Path) -> None:
    said = run_script(
        """
        from pathlib import Path
        from wherry.loggers.run.run_environment import environment
        print(environment(max_diff_bytes=0, folder=Path("/"))["command"])
        """,
        "--api-key",
        "sk-first",
        "--hf-token=hf-second",
        "s3://AKIA:third@bucket",
        "model.secret_key=fourth",
        "--lr",
        "0.1",
        "fifth-secret",
        env={"WANDB_API_KEY": "fifth-secret"},
    )
    assert [] == [one for one in ("sk-first", "hf-second", "third", "fourth", "fifth") if one in said]
    assert "--lr 0.1" in said


def test_a_run_folder_has_it_and_uploads_it(tmp_path: Path) -> None:
    uploads = Recorder()
    with Logger(State("run"), [RunFolderLogger(tmp_path / "run"), uploads]) as logger:
        logger.log_metrics({"loss": 1.0})
    found = json.loads((tmp_path / "run/environment.json").read_bytes())
    assert {"t", "command", "git", "packages", "host"} <= set(found)
    assert "run/environment.json" in dict(uploads.uploads)


def test_a_run_that_goes_on_replaces_nothing(tmp_path: Path) -> None:
    for _ in range(3):
        with Logger(State("run"), [RunFolderLogger(tmp_path / "run")]) as logger:
            logger.log_metrics({"loss": 1.0})
    names = {path.name for path in (tmp_path / "run").glob("environment*")}
    assert {"environment.json", "environment-2.json", "environment-3.json"} == names


def test_a_working_folder_that_is_gone_is_no_error_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    run = RunFolderLogger(tmp_path / "run")
    run.on_error = "raise"
    with Logger(State("run"), [run]) as logger:
        logger.log_metrics({"loss": 1.0})
        run.flush()
    assert "environment.json is not written" in caplog.text


def test_it_can_be_left_out(tmp_path: Path) -> None:
    with Logger(State("run"), [RunFolderLogger(tmp_path / "run", config=RunFolderConfig(environment=False))]) as logger:
        logger.log_metrics({"loss": 1.0})
    assert [] == list((tmp_path / "run").glob("environment*"))
    with pytest.raises(ConfigError, match="max_diff_bytes"):
        RunFolderConfig(max_diff_bytes=-1)
