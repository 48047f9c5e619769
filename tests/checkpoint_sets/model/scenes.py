"""Who takes part: small scenes, of which all histories are looked at, and a wide one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from checkpoint_sets.model.stage import Kind
from checkpoint_sets.model.world import World

FIRST = "000000001"


def _begun(world: World, *, steps: int = 1, hours: float = 0.001) -> None:
    """The first attempt has committed so many sets, so long ago."""
    world.claim(1)
    for step in range(10, 10 * steps + 1, 10):
        name = world.set(FIRST, step)
        for rank in range(world.n_ranks):
            world.save(name, rank)
        world.commit(name)
    world.passes(hours)


def small(world: World) -> None:
    """Two ranks, two attempts, a pruner, a reader: a set is there, one is being committed, and the job begins again."""
    world.stage.alone("before", lambda: _begun(world))
    name = world.set(FIRST, 20)
    world.stage.alone("rank 0", lambda: world.save(name, 0))
    world.add("rank 1", lambda: world.save(name, 1))
    world.add("committer", lambda: world.commit(name))
    world.add("job 2", world.job)
    world.add("pruner", world.prune)
    world.add("reader", world.read)


def late(world: World) -> None:
    """A set is abandoned, and its last receipt comes after all, with a committer."""

    def before() -> None:
        _begun(world)
        world.save(world.set(FIRST, 20), 0)
        world.passes(50)

    world.stage.alone("before", before)
    name = world.set(FIRST, 20)
    world.add("rank 1", lambda: world.save(name, 1))
    world.add("committer", lambda: world.commit(name))
    world.add("deputy", lambda: world.commit(name, delay_s=1.0))
    world.add("job 2", lambda: world.job(step=30))
    world.add("pruner", lambda: world.prune(times=2))
    world.add("clock", lambda: world.passes(7))


def pins(world: World) -> None:
    """Two sets, two who prune the older one, and one who pins it."""
    world.stage.alone("before", lambda: _begun(world, steps=2, hours=7))
    world.add("pruner", lambda: world.prune(times=2))
    world.add("other pruner", world.prune)
    world.add("pinner", lambda: world.pin(world.set(FIRST, 10)))
    world.add("clock", lambda: world.passes(6.5))


def reads(world: World) -> None:
    """Two sets, one who prunes the older one, two who restore it, of whom one may only read, and the grace passes."""
    world.stage.alone("before", lambda: _begun(world, steps=2))
    world.add("pruner", lambda: world.prune(times=2))
    world.add("reader", lambda: world.restore(world.set(FIRST, 10)))
    world.add("slow reader", lambda: world.restore(world.set(FIRST, 10), may_write=False))
    world.add("clock", lambda: world.passes(0.1, 6.5))


def deletes(world: World) -> None:
    """Two sets, and three who delete them: by the rule, and by name."""
    world.stage.alone("before", lambda: _begun(world, steps=2))
    world.add("pruner", world.prune)
    world.add("deleter 20", lambda: world.delete(world.set(FIRST, 20)))
    world.add("deleter 10", lambda: world.delete(world.set(FIRST, 10)))
    world.add("reader", world.read)


def shares(world: World) -> None:
    """A set is saved for longer than the grace, and may use files of an older one, which goes when another set is there."""
    world.stage.alone("before", lambda: _begun(world))
    name, other = world.set(FIRST, 30), world.set(FIRST, 20)

    def save_other() -> None:
        for rank in range(world.n_ranks):
            world.save(other, rank, refers=False)
        world.commit(other)
        world.prune()

    world.add("rank 0", lambda: world.save(name, 0, hours=6.5))
    world.add("rank 1", lambda: world.save(name, 1))
    world.add("committer", lambda: world.commit(name))
    world.add("other", save_other)
    world.add("pruner", world.prune)
    world.add("reader", world.read)


def starts(world: World) -> None:
    """Two jobs of one name begin at once, each with two ranks, while sets are committed and deleted; one start is tried twice."""
    world.stage.alone("before", lambda: _begun(world, steps=2))
    name = world.set(FIRST, 30)
    world.stage.alone("rank 0", lambda: world.save(name, 0))
    world.add("rank 1", lambda: world.save(name, 1))
    for start in ("job 2", "job 3"):
        world.add(start, lambda start=start: world.job(start))  # type: ignore[misc]
        world.add(f"{start} rank 1", lambda start=start: world.start(1, start))  # type: ignore[misc]
    world.add("job 2 again", lambda: world.start(0, "job 2"))
    world.add("pruner of job 1", lambda: world.prune(own=FIRST, times=2))


def wide(world: World) -> None:
    """All of that, in numbers that are chosen."""

    def chosen(n: int) -> int:
        return world.stage.choose(n, Kind.PLAY)

    n_sets = 1 + chosen(2)
    world.stage.alone("before", lambda: _begun(world, steps=n_sets))
    for step in range(10 * n_sets + 10, 10 * n_sets + 30, 10):
        name = world.set(FIRST, step)
        for rank in range(world.n_ranks):
            fails = chosen(12) == 11
            world.add(f"rank {rank} step {step}", lambda name=name, rank=rank, fails=fails: world.save(name, rank, fails=fails))  # type: ignore[misc]
        world.add(f"committer {step}", lambda name=name: world.commit(name))  # type: ignore[misc]
        world.add(f"deputy {step}", lambda name=name: world.commit(name, delay_s=1.0))  # type: ignore[misc]
    for start in ("job 2", "job 3")[: chosen(3)]:
        world.add(start, lambda start=start: world.job(start))  # type: ignore[misc]
        world.add(f"{start} rank 1", lambda start=start: world.start(1, start))  # type: ignore[misc]
    if chosen(2):
        world.add("pruner of job 1", lambda: world.prune(own=FIRST, times=2))
    for n in range(1 + chosen(2)):
        world.add(f"pruner {n}", lambda: world.prune(times=2))
    for n in range(1 + chosen(2)):
        world.add(f"reader {n}", world.read)
    if chosen(2):
        world.add("slow reader", lambda: world.read(may_write=False))
    if chosen(2):
        pinned, unpins = world.set(FIRST, 10 + 10 * chosen(3)), bool(chosen(2))
        world.add("pinner", lambda: world.pin(pinned, unpins=unpins))
    if chosen(3) == 2:
        world.add("deleter", lambda: world.delete(world.set(FIRST, 10 * n_sets)))
    waits = [(0.1, 2.0, 6.5, 50.0, 200.0)[chosen(5)] for _ in range(chosen(4))]
    world.add("clock", lambda: world.passes(*waits), may_die=False)


SCENES: Mapping[str, Callable[[World], None]] = {
    one.__name__: one for one in (small, late, pins, reads, deletes, shares, starts, wide)
}
