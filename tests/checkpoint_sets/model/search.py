"""Looking for a bad history: at random, or at all that deviate so often from the plain one; and the shortest form of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from checkpoint_sets.model.copies import Protocol
from checkpoint_sets.model.judge import Broken
from checkpoint_sets.model.scenes import SCENES
from checkpoint_sets.model.stage import Choices, Kind, RandomChoices, SeenBefore
from checkpoint_sets.model.world import World


@dataclass(frozen=True)
class Case:
    """A scene, on a store that keeps conditions or not, and whose listings lag: none, those of data, or all."""

    scene: str
    has_conditions: bool = True
    lagging: str = "none"
    n_ranks: int = 2
    shares: bool = False


@dataclass(frozen=True)
class Bad:
    """A bad history: the sentence that does not hold, and the choices that lead there."""

    case: Case
    sentence: str
    text: str
    deviations: Mapping[int, int]
    history: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.case}, {dict(self.deviations)}", *self.history, self.text])


def play(case: Case, choices: Choices, protocol: Protocol) -> Bad | None:
    """One history. SeenBefore, if the choices know what would follow."""
    world = World(
        choices,
        protocol,
        has_conditions=case.has_conditions,
        lagging=case.lagging,
        n_ranks=case.n_ranks,
        shares=case.shares,
    )
    try:
        SCENES[case.scene](world)
        world.play()
    except Exception as error:
        sentence = error.sentence if isinstance(error, Broken) else type(error).__name__
        return Bad(case, sentence, f"{type(error).__name__}: {error}", choices.deviations, tuple(world.stage.history))
    return None


def at_random(case: Case, protocol: Protocol, seeds: Iterable[int]) -> Bad | None:
    """The first bad history of these seeds."""
    found = (play(case, RandomChoices(f"{seed} {case}"), protocol) for seed in seeds)
    return next((bad for bad in found if bad is not None), None)


def shortest(bad: Bad, protocol: Protocol) -> Bad:
    """The same sentence broken by fewer choices that are not plain: none of them can be left out."""
    at_once = max(1, len(bad.deviations) // 2)
    while True:
        for left_out in _chunks(sorted(bad.deviations), at_once):
            kept = {place: chosen for place, chosen in bad.deviations.items() if place not in left_out}
            shorter = play(bad.case, Choices(kept), protocol)
            if shorter is not None and shorter.sentence == bad.sentence and len(shorter.deviations) < len(bad.deviations):
                bad = shorter
                break
        else:
            if at_once == 1:
                return bad
            at_once //= 2


def _chunks(places: Sequence[int], at_once: int) -> Iterator[frozenset[int]]:
    return (frozenset(places[at : at + at_once]) for at in range(0, len(places), at_once))


class _Guided(Choices):
    """Follows the choices that are wanted, then the plain ones, and notes what else could be chosen, unless that is known."""

    def __init__(self, search: Exhaustive, wanted: Mapping[int, int], left: int) -> None:
        super().__init__(wanted)
        self._search, self._left = search, left
        self._known_to = max(wanted, default=-1)

    def decide(self, place: int, n: int, kind: Kind, state: Callable[[], int]) -> int:
        if place <= self._known_to:
            return super().decide(place, n, kind, state)
        self._search.note(self.deviations, place, n, kind, state(), self._left)
        return 0


class Exhaustive:
    """All histories of a case with at most so many deviations from the plain one; who is next when an actor ends is none.

    A state that was met before, with as many deviations left, is not looked at again: the same has happened to all then.
    """

    def __init__(self, case: Case, protocol: Protocol, n_deviations: int) -> None:
        self._case, self._protocol = case, protocol
        self._known: dict[int, int] = {}
        self._waiting: list[tuple[Mapping[int, int], int]] = [({}, n_deviations)]
        self.n_histories = 0

    @property
    def n_states(self) -> int:
        """How many were met."""
        return len(self._known)

    def search(self, most_histories: int = 10**9) -> Bad | None:
        """Look at all of them, or at so many: the first bad one. It may be called again, and goes on."""
        for _ in range(most_histories):
            if not self._waiting:
                return None
            wanted, left = self._waiting.pop()
            self.n_histories += 1
            with suppress(SeenBefore):
                if (bad := play(self._case, _Guided(self, wanted, left), self._protocol)) is not None:
                    return bad
        return None

    def note(self, deviations: Mapping[int, int], place: int, n: int, kind: Kind, state: int, left: int) -> None:
        """What else can be chosen here. SeenBefore."""
        if self._known.get(state, -1) >= left:
            raise SeenBefore
        self._known[state] = left
        cost = 0 if kind in (Kind.NEXT, Kind.PLAY) else 1
        if left >= cost:
            self._waiting.extend(({**deviations, place: other}, left - cost) for other in range(1, n))
