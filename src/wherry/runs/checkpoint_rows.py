"""The checkpoint sets of a run, as a table of them shows them."""

from __future__ import annotations

import shlex

from wherry.checkpoints.protocol.names import RunKeys
from wherry.checkpoints.survey import SetState, survey
from wherry.mirror.format.layout import key_for
from wherry.runs.objects.contents import folder_key, uri_of
from wherry.runs.objects.discovery import Found
from wherry.runs.objects.place import Place
from wherry.runs.records import CheckpointRow


def checkpoints_of(place: Place, run: Found, now_s: float) -> list[CheckpointRow]:
    """The sets of a run, from the oldest to the newest. StoreError."""
    found = survey(place.store, RunKeys(key_for(folder_key(place, run), "checkpoints")))
    return [_row(one, uri_of(place, run), now_s) for one in found]


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
        size_bytes=one.size_bytes,
        metrics=one.metrics,
        verified=verified,
        verified_age_s=verified_age_s,
        is_pinned=one.is_pinned,
        is_latest=one.is_latest,
        proof=one.proof,
        restore_command=command if one.state == "complete" and verified != "wrong" else "",
    )
