"""The checkpoint sets of a run, as a table of them shows them."""

from __future__ import annotations

import re
import shlex

from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.survey import SetState, survey
from wherry.mirror.format.layout import key_for
from wherry.runs.objects.contents import Contents, folder_key, uri_of
from wherry.runs.objects.discovery import Found
from wherry.runs.objects.place import Place
from wherry.runs.records import CheckpointRow

_MANIFEST = re.compile(r"checkpoints/manifests/([^/]+)\.json")


def checkpoints_of(place: Place, run: Found, now_s: float) -> list[CheckpointRow]:
    """The sets of a run, from the oldest to the newest. StoreError."""
    found = survey(place.store, RunKeys(key_for(folder_key(place, run), "checkpoints")))
    return [_row(one, uri_of(place, run), now_s) for one in found]


def committed_steps(contents: Contents) -> list[int]:
    """The steps of the sets that are committed and not deleted, in order, as the last listing shows them: without a request."""
    names = (one for name in contents.files if (one := _MANIFEST.fullmatch(name)) is not None)
    there = {name.split("/")[2] for name in contents.files if name.startswith("checkpoints/data/")}
    # A set that was deleted keeps a document in the place of its manifest.
    kept = {SetName.parse(one[1]) for one in names if contents.found.is_cut or one[1] in there}
    return sorted({one.step for one in kept if one is not None})


def _row(one: SetState, uri: str, now_s: float) -> CheckpointRow:
    verified, verified_age_s = "when stored" if one.state == "complete" else None, None
    if one.verified is not None:
        verified = "right" if one.verified.is_right else "wrong"
        verified_age_s = None if one.verified.at_s is None else max(0.0, now_s - one.verified.at_s)
    name = str(one.name)
    command = f"wherry checkpoints restore {shlex.quote(uri)} restored-{one.name.step} --which {name}"
    return CheckpointRow(
        name=name,
        step=one.name.step,
        attempt=one.name.attempt,
        state=one.state,
        is_complete=one.state == "complete",
        age_s=None if one.modified_s is None else max(0.0, now_s - one.modified_s),
        stored_s=one.modified_s,
        size_bytes=one.size_bytes,
        metrics=one.metrics,
        verified=verified,
        verified_age_s=verified_age_s,
        is_pinned=one.is_pinned,
        is_latest=one.is_latest,
        proof=one.proof,
        restore_command=command if one.state == "complete" and verified != "wrong" else "",
    )
