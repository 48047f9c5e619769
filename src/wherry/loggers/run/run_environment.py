"""environment(): where and of what a run was made: code, command line, packages, machine, scheduler. Without its secrets."""

from __future__ import annotations

import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from wherry.redact import Redactor, redact

#: The changes of all files but those that are there to hold secrets.
_DIFF = (
    *("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--", ":/"),
    *(
        f":(top,exclude,glob,icase)**/{name}"
        for name in (".env*", "*.pem", "*.key", "*.p12", "id_rsa*", "id_ed25519*", "*credentials*.json")
    ),
)
#: git of a network file system may hang; the run does not wait for more.
_GIT_S = 10.0
_HIDDEN = "***"
#: Names whose values are secrets: api_key, --hf-token, AWS_SECRET_ACCESS_KEY; neither max_tokens nor tokenizer.
_SECRET_NAME = r"[\w.-]*(?:secret|passw|(?:api|access|private|auth|account)[-_]?key|credential|token(?![a-z]))[\w.-]*"  # noqa: S105  # a pattern
_IS_SECRET = re.compile(rf"-*{_SECRET_NAME}", re.IGNORECASE)
_ASSIGNED = re.compile(rf"""({_SECRET_NAME}["']?\s*[:=]\s*)("[^"]*"|'[^']*'|[^\s,;)}}\]]+)""", re.IGNORECASE)
#: Secrets that show what they are: private keys, and the tokens of Hugging Face, W&B, GitHub, GitLab, AWS, Google, OpenAI, Slack.
_TELLING = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:hf_[A-Za-z0-9]{20,}|wandb_v1_\w{20,}|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{15,}|A[KS]IA[0-9A-Z]{16}"
    r"|AIza[\w-]{30,}|ya29\.[\w.-]{20,}|sk-[\w-]{20,}|xox[abeoprs]-[\w-]{10,})",
    re.DOTALL,
)
_USER_IN_URL = re.compile(r"(\w+://)[^/\s@]+@")
#: What names the job and its place. Only these variables are recorded.
_SCHEDULER = re.compile(
    r"SLURM_(?:JOB_ID|JOB_NAME|ARRAY_JOB_ID|ARRAY_TASK_ID|CLUSTER_NAME|JOB_PARTITION|JOB_NUM_NODES|NODEID|PROCID|RESTART_COUNT)"
    r"|(?:POD|NODE)_(?:NAME|NAMESPACE|UID)|JOB_COMPLETION_INDEX|KUBERNETES_NAMESPACE"
)


def environment(
    *, max_diff_bytes: int, folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> dict[str, object]:
    """What a run folder says of its run's surroundings; JSON values only.

    Hidden are secrets that wherry knows, values of options and assignments whose names sound secret, users in URLs, values of
    such environment variables wherever they occur, private keys, and tokens whose first letters tell whose they are. Files
    that are there to hold secrets (.env, *.pem) are not in the diff. A secret of another form in code is not noticed.
    """
    variables, folder = os.environ if variables is None else variables, folder or Path.cwd()
    found: dict[str, object] = {
        "command": shlex.join(_hidden_options(sys.orig_argv)),
        "folder": str(folder),
        "python": sys.version,
        "executable": sys.executable,
        "packages": dict(
            sorted({one.metadata["Name"]: one.version for one in distributions() if "Name" in one.metadata}.items())
        ),
        "host": {
            "name": socket.gethostname(),
            "platform": platform.platform(),
            "n_cpus": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "gpus": _gpus(),
        },
        "scheduler": {name: value for name, value in sorted(variables.items()) if _SCHEDULER.fullmatch(name)},
        "git": _git(folder, max_diff_bytes),
    }
    known = Redactor()
    known.learn([value for name, value in variables.items() if _IS_SECRET.fullmatch(name)])
    return _scrubbed(found, known)  # type: ignore[return-value]


def _scrubbed(value: object, known: Redactor) -> object:
    if isinstance(value, str):
        text = _USER_IN_URL.sub(rf"\1{_HIDDEN}@", _ASSIGNED.sub(rf"\1{_HIDDEN}", _TELLING.sub(_HIDDEN, value)))
        return redact(known.scrub(text))
    if isinstance(value, dict):
        return {key: _scrubbed(inner, known) for key, inner in value.items()}
    return [_scrubbed(inner, known) for inner in value] if isinstance(value, list) else value


def _hidden_options(arguments: Sequence[str]) -> list[str]:
    """The arguments without the values that follow options such as ``--api-key``."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [_HIDDEN if before.startswith("-") and _IS_SECRET.fullmatch(before) else one for before, one in pairs]


def _gpus() -> list[str]:
    """The models of NVIDIA's GPUs, as the driver lists them."""
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", path.read_text(), re.MULTILINE)
        found.append(match[1] if match else "?")
    return found


def _git(folder: Path, max_diff_bytes: int) -> dict[str, object] | None:
    """Commit, branch and the difference to the commit; None outside of a repository, without git, or if git hangs."""
    try:
        commit = _git_says(folder, "rev-parse", "HEAD").decode().strip()
        branch = _git_says(folder, "rev-parse", "--abbrev-ref", "HEAD").decode(errors="replace").strip()
        changed = _git_says(folder, "status", "--porcelain").decode(errors="replace").splitlines()
        diff = _git_says(folder, *_DIFF, most_bytes=max_diff_bytes) if max_diff_bytes else b""
    except (OSError, subprocess.SubprocessError):
        return None
    return {
        "commit": commit,
        "branch": branch,
        "is_dirty": bool(changed),
        "changed": changed[:1000],
        "diff": diff[:max_diff_bytes].decode(errors="replace"),
        "diff_is_cut": len(diff) > max_diff_bytes,
    }


def _git_says(folder: Path, *arguments: str, most_bytes: int = 2**20) -> bytes:
    """What git prints, up to one byte more than `most_bytes`: the changes of a data file may be longer than the memory."""
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments]
    variables = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # it must not get into the way of a commit
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=variables, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet) as git:
        try:
            head = ["head", "-c", str(most_bytes + 1)]
            said = subprocess.run(head, stdin=git.stdout, stdout=subprocess.PIPE, timeout=_GIT_S, check=True).stdout
            if git.stdout is not None:
                git.stdout.close()  # which ends a git that has more to say
            status = git.wait(_GIT_S)
        except BaseException:
            git.kill()
            raise
    if status and len(said) <= most_bytes:
        raise subprocess.CalledProcessError(status, command)
    return said
