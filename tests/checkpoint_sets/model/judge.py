"""What must hold of a bucket with checkpoint sets after each request, whoever is killed when: the sentences of the protocol.

The judge reads the bucket by rules of its own, and is told what the actors believe: that their commit was accepted, that their
pin holds, that they are restoring a set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from checkpoint_sets.model.stage import KEYS, Stage
from checkpoint_sets.oracle import SetOracle
from wherry.checkpoints.protocol.deletion import PruneDelays
from wherry.errors import NotFoundError

_RECEIPT = re.compile(r"(\d{5})-of-(\d{5})-.*\.json")

NEVER_LOST = "a complete set is there until a newer one is"
NEWEST = "a reader gets the newest set that was complete when it looked, or a newer one"
POSSIBLE = "when all is quiet, the newest set that can be there is there"
BYTES = "a set comes back with all its files, byte by byte, or not at all"
DAMAGED = "a set that has a manifest has its objects"
FUNCTION = "the manifest is a function of the receipts: whoever writes it writes the same bytes"
ALL_RANKS = "a manifest is written when the receipts of all ranks are there, and none has failed"
FINAL = "a tombstone stays, or the manifest is put back while all objects are there"
ACCEPTED = "a commit that was accepted has written the manifest"
QUIET = "only a set that has no manifest, and was quiet for long, is abandoned"
GRACE = "objects go when the tombstone has been there for the grace, receipts first"
NEWER_THERE = "objects go only while another set is complete"
READERS = "no object goes while somebody who has said so restores its set"
TOLD = "a set is not deleted while somebody who has said so restores it"
PINS = "a pin holds from the moment that it was accepted"
RESUMED = "the set that the newest attempt resumes from stays"
TAKEN_OVER = "a job does not prune a run that a newer attempt has"
SAME_SET = "all ranks of an attempt restore the same set"
ONE_NUMBER = "no two starts have one number, where the store keeps conditions"
REFERENCED = "an object that a committed set uses stays"
ENDS = "what was begun is ended by whoever prunes later"


class Broken(AssertionError):
    """A sentence that does not hold in this history."""

    def __init__(self, sentence: str, text: str) -> None:
        super().__init__(f"{sentence}: {text}")
        self.sentence = sentence


@dataclass(frozen=True)
class _Look:
    """What was there when a pruner began: objects with their times, the newest attempt, and what that was resumed from."""

    own: int | None = None
    objects: tuple[tuple[str, float], ...] = ()
    newest_attempt: int = 0
    resumed_from: str | None = None


class Judge:
    """Judges one history. `wanted` gives the files of a set by its name and world."""

    def __init__(self, stage: Stage, wanted: Callable[[str, int], Mapping[str, bytes]], delays: PruneDelays) -> None:
        self._stage = stage
        self._store = stage.store
        self._bare = stage.store.bare
        self._delays = delays
        self._oracle = SetOracle(self._bare, KEYS.base, wanted)
        #: The newest set that was ever complete; what was ever committed, with its bytes; tombstones, each with time and reason.
        self.proven = ""
        self._committed: dict[str, bytes] = {}
        self._tombs: dict[str, tuple[float, str]] = {}
        #: The objects that each set which was ever committed uses.
        self._used: dict[str, set[str]] = {}
        #: What actors believe: the set that each restores; pins; what each attempt resumes from; the starts that have begun.
        self._readers: dict[str, str] = {}
        self._pins: set[str] = set()
        self._given_up: set[str] = set()
        self._resumed: dict[str, str | None] = {}
        self._begun: dict[tuple[str, int], str] = {}
        self._pruners: dict[str, _Look] = {}
        stage.memory = self._memory
        self._store.after_change = self._after

    def _memory(self) -> object:
        pruners = tuple(sorted(self._pruners.items(), key=lambda each: each[0]))
        told = (sorted(self._pins), sorted(self._given_up), sorted(self._readers.items()), sorted(self._begun.items()))
        resumed = sorted(self._resumed.items())
        there = (self.proven, sorted(self._tombs.items()), sorted(self._committed))
        return f"{there} {told} {resumed} {pruners}"

    # -- what actors tell

    def expect(self, holds: bool, sentence: str, text: str) -> None:
        """Broken, if it does not hold."""
        if not holds:
            raise Broken(sentence, text)

    def is_as_new(self, name: str, floor: str) -> bool:
        """Whether the set is as new as one that was complete before, unless that was deleted by its name or listings lag."""
        return name >= floor or floor in self._given_up or self._store.lagging == "all"

    def accepted(self, name: str) -> None:
        """An actor's commit was accepted."""
        self.expect(name in self._committed, ACCEPTED, f"{name} has no manifest")

    def reads(self, actor: str, name: str) -> None:
        """An actor restores a set, has said so, and believes that it stays."""
        self._readers[actor] = name

    def has_read(self, actor: str) -> None:
        """It does not any more."""
        self._readers.pop(actor, None)

    def pinned(self, name: str) -> None:
        """An actor's pin was accepted."""
        self._pins.add(name)

    def gives_up(self, name: str) -> None:
        """An actor deletes a set by its name, also if it is the newest one: then another one has to be there."""
        self._given_up.add(name)

    def unpins(self, name: str) -> None:
        """An actor takes the pin away."""
        self._pins.discard(name)

    def begins(self, rank: int, start: str, attempt: str, resumes: str | None) -> None:
        """A rank of a start has this attempt, which restores that set."""
        if self._store.has_conditions:
            taken = [one for one in self._resumed if one[:9] == attempt[:9] and one != attempt]
            self.expect(not taken and (start, rank) not in self._begun, ONE_NUMBER, f"{attempt} of {start}, rank {rank}, {taken}")
        self._begun[start, rank] = attempt
        known = self._resumed.setdefault(attempt, resumes)
        self.expect(known == resumes, SAME_SET, f"{known} and {resumes} of {attempt}")

    def prunes(self, actor: str, own: int | None) -> None:
        """An actor prunes, for this attempt or for nobody; it begins by asking for the time."""
        self._pruners[actor] = _Look(own)

    def _looks(self, actor: str) -> None:
        objects = tuple((meta.key, meta.modified_s or 0.0) for meta in self._bare.list(KEYS.all_data))
        number = self._newest_attempt()
        record = json.loads(self._bytes(KEYS.attempt(number))) if number else {}
        self._pruners[actor] = _Look(self._pruners.get(actor, _Look()).own, objects, number, record.get("resumed_from"))

    def _newest_attempt(self) -> int:
        return max((KEYS.number_of_attempt(meta.key) or 0 for meta in self._bare.list(KEYS.attempts)), default=0)

    def has_pruned(self, actor: str, pruned: list[str]) -> None:
        """It says that it has deleted these sets."""
        self._pruners.pop(actor, None)
        if self._store.lagging == "all":  # it may not have seen them
            return
        for name in pruned:
            self.expect(name not in self._pins or name not in self._tombs, PINS, f"{name} was pruned, and is pinned")
            using = self._who_restores(name)
            self.expect(not using or name not in self._tombs, TOLD, f"{name} was pruned, {using} restores it")

    def _who_restores(self, name: str) -> list[str]:
        return [actor for actor, of_set in self._readers.items() if of_set == name]

    # -- what happens

    def _after(self, operation: str, key: str, data: bytes) -> None:
        actor = self._stage.history[-1].partition(":")[0]
        if key.startswith(KEYS.manifests):
            self._manifest(actor, operation, key[len(KEYS.manifests) : -len(".json")], data)
        elif operation == "delete" and key.startswith(KEYS.all_data):
            self._object_goes(actor, key)
        else:
            if key == KEYS.clock:
                self._looks(actor)
            return
        now = self._oracle.newest() or ""
        # Of two who delete at once, none may see that the other one reads the set which stays, if all listings lag.
        if (now and self.proven in self._given_up) or (self._given_up and self._store.lagging == "all"):
            self.proven = min(now, self.proven)
        self.expect(now >= self.proven, NEVER_LOST, f"{self.proven} was complete, {now or 'nothing'} is left")
        self.proven = now

    def _manifest(self, actor: str, operation: str, name: str, data: bytes) -> None:
        if operation == "delete":
            known = {key for key, _ in self._pruners.get(actor, _Look()).objects}
            left = [meta.key for meta in self._bare.list(f"{KEYS.all_data}{name}/") if meta.key in known]
            self.expect(not left, FINAL, f"the tombstone of {name} is gone, {left} is left")
            self._tombs.pop(name, None)
            return
        content = json.loads(data)
        if content["format"] == "wherry-checkpoint-tombstone":
            self._tombstone(actor, name, content)
            return
        self.expect(self._committed.setdefault(name, data) == data, FUNCTION, f"two manifests of {name}")
        if (tombstone := self._tombs.pop(name, None)) is not None:
            may_be = tombstone[1] == "pruned" or not self._store.has_conditions
            self.expect(may_be and self._is_whole(name), FINAL, f"{name} was {tombstone[1]}, and has a manifest again")
        else:
            self.expect(self._has_all_receipts(name), ALL_RANKS, f"{name} is committed")
        self._used[name] = self._keys_used_by(name)

    def _tombstone(self, actor: str, name: str, content: Mapping[str, Any]) -> None:
        look = self._pruners.get(actor, _Look())
        if content["reason"] == "abandoned":
            known = {key for key, _ in look.objects}
            metas = [
                (meta.key, self._store.now_s - (meta.modified_s or 0.0)) for meta in self._bare.list(f"{KEYS.all_data}{name}/")
            ]
            ages_s = {age_s for key, age_s in metas if key in known or age_s > 0}  # others may have come since it has looked
            if self._store.lagging != "none" and len(ages_s) > 1:
                ages_s.discard(0.0)  # it may not have seen these
            self.expect(min(ages_s, default=0.0) > self._delays.abandon_after_s, QUIET, f"{name} is abandoned, {ages_s} s old")
            there = name in self._tombs or name in self._committed
            self.expect(not (there and self._store.has_conditions), QUIET, f"{name} is abandoned, and was there")
        elif self._store.lagging != "all":
            self.expect(look.own is None or look.newest_attempt <= look.own, TAKEN_OVER, f"{name} is deleted by {look.own}")
            is_resumed_from = name == look.resumed_from and look.newest_attempt == self._newest_attempt()
            self.expect(not is_resumed_from, RESUMED, f"{name} is deleted, {look.newest_attempt} resumes from it")
        self._tombs[name] = (self._store.now_s, content["reason"])

    def _object_goes(self, actor: str, key: str) -> None:
        name = key[len(KEYS.all_data) :].partition("/")[0]
        self.expect(name in self._tombs, GRACE, f"{key} goes, its set has no tombstone")
        age_s = self._store.now_s - self._tombs[name][0]
        self.expect(age_s >= self._delays.grace_s, GRACE, f"{key} goes {age_s:g} s after the tombstone was written")
        using = self._who_restores(name)
        self.expect(not using or self._store.lagging == "all", READERS, f"{key} goes, {using} restores {name}")
        self.expect(name not in self._pins, PINS, f"{key} goes, {name} is pinned")
        self.expect(bool(self.proven) and self.proven != name, NEWER_THERE, f"{key} goes, {self.proven or 'nothing'} is complete")
        users = [one for one, keys in self._used.items() if key in keys and one != name and one not in self._tombs]
        self.expect(not users, REFERENCED, f"{key} goes, {users} use it")

    # -- the end

    def newest_possible(self) -> str:
        """The newest set that is committed, or can be."""
        return self._oracle.newest(with_uncommitted=True) or ""

    def ends(self) -> None:
        """All is quiet, and who prunes has done so after each delay: what must hold then."""
        for name in self._pins:
            self.expect(name in self._committed and name not in self._tombs, PINS, f"{name} is pinned, and deleted")
        begun = {meta.key[len(KEYS.all_data) :].partition("/")[0] for meta in self._bare.list(KEYS.all_data)}
        if not self._store.has_conditions and begun - self._committed.keys() - self._tombs.keys():
            return  # a set that is newer than all complete ones is not abandoned there, and may use objects of others
        for name in self._tombs:
            left = [meta.key for meta in self._bare.list(f"{KEYS.all_data}{name}/")]
            used = {key for user, keys in self._used.items() if user not in self._tombs for key in keys}
            self.expect(not set(left) - used, ENDS, f"{left} of {name} are left")

    # -- the bucket

    def _exists(self, key: str) -> bool:
        try:
            self._bare.head(key)
        except NotFoundError:
            return False
        return True

    def _bytes(self, key: str) -> bytes:
        blocks: list[bytes] = []
        self._bare.read(key, lambda block, _: blocks.append(bytes(block)))
        return b"".join(blocks)

    def _receipts(self, name: str) -> dict[int, str]:
        prefix = f"{KEYS.all_data}{name}/_ranks/"
        keys = [meta.key for meta in self._bare.list(prefix)]
        return {int(found[1]): key for key in keys if (found := _RECEIPT.fullmatch(key[len(prefix) :]))}

    def _has_all_receipts(self, name: str) -> bool:
        receipts = self._receipts(name)
        worlds = {int(key.rpartition("/")[2][9:14]) for key in receipts.values()}
        return len(worlds) == 1 and receipts.keys() == set(range(worlds.pop()))

    def _keys_used_by(self, name: str) -> set[str]:
        used = set()
        for key in self._receipts(name).values():
            used |= {f"{KEYS.all_data}{one.get('set') or name}/{one['name']}" for one in json.loads(self._bytes(key))["objects"]}
        return used

    def _is_whole(self, name: str) -> bool:
        return self._has_all_receipts(name) and all(self._exists(key) for key in self._used.get(name, ()))
