"""Laws of uploads in parts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from wherry.checksum import crc32c, format_crc32c
from wherry.errors import AlreadyExistsError, IntegrityError, NotFoundError, StoreError
from wherry.store import CRC32C_METADATA, TOKEN_METADATA, ObjectMeta, ObjectStore, Part, PutOptions, StoredPart
from wherry.testing.conformance.suite import StoreSuite
from wherry.testing.conformance.support import at_once, checks_crc32c, get, large_file, new_file, parts_of, same, split


class PartLaws(StoreSuite):
    """Laws of uploads in parts."""

    def test_parts_join_in_order(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """In whatever order they are sent and given to complete(). The object is not visible before complete()."""
        key = f"{prefix}/large"
        if (parts := parts_of(store, key)) is None:
            return
        path, data = large_file(store, tmp_path)
        metadata = {TOKEN_METADATA: "token", CRC32C_METADATA: format_crc32c(crc32c(data))}
        upload_id = parts.begin(key, len(data), PutOptions(crc32c=crc32c(data), metadata=metadata))
        assert parts.list_parts(key, upload_id) == []
        pieces = split(store, data)
        if store.capabilities.sequential_parts:
            sent = [parts.put_part(key, upload_id, path, piece) for piece in pieces]
        else:
            sent = at_once(lambda piece: parts.put_part(key, upload_id, path, piece), pieces[::-1])
        with pytest.raises(NotFoundError):
            parts.head(key)
        assert list(parts.list(f"{prefix}/")) == []
        if not store.capabilities.sequential_parts:
            held = parts.list_parts(key, upload_id)
            assert [(piece.number, piece.size_bytes) for piece in pieces] == [(part.number, part.size_bytes) for part in held]
            assert {part.number: part.etag for part in sent} == {part.number: part.etag for part in held}
        answer = parts.complete(key, upload_id, sent, PutOptions(crc32c=crc32c(data), metadata=metadata))
        assert (key, len(data)) == (answer.key, answer.size_bytes)
        assert answer.crc32c in (None, crc32c(data))
        assert same(data, get(store, key, tmp_path))
        found = store.head(key)
        assert (len(data), answer.etag) == (found.size_bytes, found.etag)
        if store.capabilities.metadata:
            assert ("token", crc32c(data)) == (found.token, found.crc32c)
        with pytest.raises(NotFoundError):
            parts.list_parts(key, upload_id)

    def test_upload_goes_on_from_what_is_held(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """Parts that list_parts() returns are kept, and only the rest is sent: in a stream, from the first missing byte on."""
        key = f"{prefix}/large"
        if (parts := parts_of(store, key)) is None:
            return
        path, data = large_file(store, tmp_path)
        upload_id = parts.begin(key, len(data), PutOptions(crc32c=crc32c(data)))
        pieces = split(store, data)
        parts.put_part(key, upload_id, path, pieces[0])
        held = parts.list_parts(key, upload_id)
        if store.capabilities.sequential_parts:
            assert [part.number for part in held] == [1]
            assert 0 < held[0].size_bytes <= pieces[0].size_bytes
            pieces = [Part(2, held[0].size_bytes, len(data), crc32c(data[held[0].size_bytes :]))]
        else:
            assert [(1, pieces[0].size_bytes)] == [(part.number, part.size_bytes) for part in held]
            pieces = pieces[1:]
        sent = [parts.put_part(key, upload_id, path, piece) for piece in pieces]
        parts.complete(key, upload_id, [*held, *sent], PutOptions(crc32c=crc32c(data)))
        assert same(data, get(store, key, tmp_path))

    def test_part_sent_twice(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """The later one counts, except in a stream. So a part whose answer was lost can be sent again."""
        key = f"{prefix}/large"
        if (parts := parts_of(store, key)) is None:
            return
        path, data = large_file(store, tmp_path)
        other = new_file(tmp_path, data[::-1], "other")
        upload_id = parts.begin(key, len(data), PutOptions(crc32c=crc32c(data)))
        pieces = split(store, data)
        first = pieces[0]
        if not store.capabilities.sequential_parts:
            parts.put_part(key, upload_id, other, Part(1, first.start, first.end, crc32c(data[::-1][: first.end])))
        sent = [parts.put_part(key, upload_id, path, piece) for piece in pieces]
        again = parts.put_part(key, upload_id, path, first)
        parts.complete(key, upload_id, [again, *sent[1:]], PutOptions(crc32c=crc32c(data)))
        assert same(data, get(store, key, tmp_path))

    def test_one_part_is_enough(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """The last part may be smaller than the minimum, and the first may be the last."""
        key = f"{prefix}/small"
        if (parts := parts_of(store, key)) is None:
            return
        path = new_file(tmp_path, b"small")
        upload_id = parts.begin(key, 5, PutOptions(crc32c=crc32c(b"small")))
        sent = parts.put_part(key, upload_id, path, Part(1, 0, 5, crc32c(b"small")))
        parts.complete(key, upload_id, [sent], PutOptions(crc32c=crc32c(b"small")))
        assert get(store, key, tmp_path) == b"small"

    def test_abort_leaves_nothing(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """The parts are deleted. Aborting again is no error."""
        key = f"{prefix}/large"
        if (parts := parts_of(store, key)) is None:
            return
        path, data = large_file(store, tmp_path)
        upload_id = parts.begin(key, len(data))
        parts.put_part(key, upload_id, path, split(store, data)[0])
        parts.abort(key, upload_id)
        parts.abort(key, upload_id)
        with pytest.raises(NotFoundError):
            parts.list_parts(key, upload_id)
        with pytest.raises(NotFoundError):
            parts.head(key)
        assert set() == self.raw_names(store, prefix)

    def test_refused_complete_leaves_nothing(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """complete() refuses a part whose receipt is wrong."""
        key = f"{prefix}/large"
        if (parts := parts_of(store, key)) is None:
            return
        path, data = large_file(store, tmp_path)
        upload_id = parts.begin(key, len(data))
        sent = [parts.put_part(key, upload_id, path, piece) for piece in split(store, data)]
        forged = StoredPart(sent[0].number, sent[0].size_bytes, '"00000000000000000000000000000000"')
        with pytest.raises(StoreError):
            parts.complete(key, upload_id, [forged, *sent[1:]])
        with pytest.raises(NotFoundError):
            parts.head(key)
        parts.abort(key, upload_id)

    def test_wrong_checksum_of_a_part_is_refused(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """By a store that checks. In any other, and in a stream, only the checksum of the whole object counts."""
        key = f"{prefix}/large"
        if (parts := parts_of(store, key)) is None:
            return
        path, data = large_file(store, tmp_path)
        checks = checks_crc32c(store, f"{prefix}/first", tmp_path)
        upload_id = parts.begin(key, len(data))
        piece = split(store, data)[0]
        wrong = Part(piece.number, piece.start, piece.end, piece.crc32c ^ 1)
        if checks and not store.capabilities.sequential_parts:
            with pytest.raises(IntegrityError):
                parts.put_part(key, upload_id, path, wrong)
        else:
            assert piece.size_bytes == parts.put_part(key, upload_id, path, wrong).size_bytes
        parts.abort(key, upload_id)

    def test_uploads_are_listed_until_they_end(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """By key and id; `begun_s` is a time of today, give or take the store's clock."""
        key = f"{prefix}/large"
        if (parts := parts_of(store, key)) is None:
            return
        path, data = large_file(store, tmp_path)
        completed, aborted = (parts.begin(name, len(data), PutOptions(crc32c=crc32c(data))) for name in (key, f"{key}-2"))
        sent = [parts.put_part(key, completed, path, piece) for piece in split(store, data)]
        found = {(upload.key, upload.upload_id): upload for upload in parts.list_uploads(prefix)}
        if store.capabilities.sequential_parts:  # known to whoever has begun them only
            assert found == {}
            parts.abort(f"{key}-2", aborted)
        else:
            assert [key, f"{key}-2"] == sorted(name for name, _ in found)
        assert all((completed if name == key else aborted).endswith(listed) for name, listed in found)
        assert all(abs(upload.begun_s - time.time()) < 86_400 for upload in found.values())
        assert list(parts.list_uploads(f"{prefix}/other")) == []
        parts.complete(key, completed, sent, PutOptions(crc32c=crc32c(data)))
        for name, listed in found:
            if name != key:
                parts.abort(name, listed)  # as it is listed, not as begin() gave it
        assert list(parts.list_uploads(prefix)) == []

    def test_complete_if_absent_keeps_the_first(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """With conditional_complete; without, the second may win, whole. A begin() may see that the name is taken."""
        key = f"{prefix}/large"
        if (parts := parts_of(store, key)) is None:
            return
        path, data = large_file(store, tmp_path)
        upload_id = parts.begin(key, len(data), PutOptions(if_absent=True, crc32c=crc32c(data)))
        sent = [parts.put_part(key, upload_id, path, piece) for piece in split(store, data)]
        store.put_file(key, new_file(tmp_path, b"first", "first"))
        try:
            parts.abort(key, parts.begin(key, 5, PutOptions(if_absent=True)))
        except AlreadyExistsError:
            assert get(store, key, tmp_path) == b"first"
        if store.capabilities.conditional_complete:
            with pytest.raises(AlreadyExistsError):
                parts.complete(key, upload_id, sent, PutOptions(if_absent=True, crc32c=crc32c(data)))
            assert get(store, key, tmp_path) == b"first"
            parts.abort(key, upload_id)
        else:
            try:
                parts.complete(key, upload_id, sent, PutOptions(if_absent=True, crc32c=crc32c(data)))
            except AlreadyExistsError:
                parts.abort(key, upload_id)
                assert get(store, key, tmp_path) == b"first"
            else:
                assert same(data, get(store, key, tmp_path))

    def test_of_two_completes_one_wins(self, store: ObjectStore, prefix: str, tmp_path: Path) -> None:
        """With conditional_complete exactly one, 5 times; else at least one. The object is never a mixture."""
        if (parts := parts_of(store, f"{prefix}/0")) is None:
            return
        contents = [bytes([value]) * 20_000 for value in (1, 2)]
        for round_ in range(5):
            key = f"{prefix}/{round_}"

            def begin(data: bytes, key: str = key) -> Callable[[], ObjectMeta | None]:
                checksum = crc32c(data)
                upload_id = parts.begin(key, len(data), PutOptions(if_absent=True, crc32c=checksum))
                piece = Part(1, 0, len(data), checksum)
                sent = parts.put_part(key, upload_id, new_file(tmp_path, data, uuid.uuid4().hex), piece)

                def complete() -> ObjectMeta | None:
                    try:
                        return parts.complete(key, upload_id, [sent], PutOptions(if_absent=True, crc32c=checksum))
                    except AlreadyExistsError:
                        parts.abort(key, upload_id)
                        return None

                return complete

            won = [meta is not None for meta in at_once(lambda complete: complete(), [begin(data) for data in contents])]
            assert any(won)
            found = get(store, key, tmp_path)
            if self.decides_races_of_completes(store):
                assert won.count(True) == 1
                assert same(contents[won.index(True)], found)
            else:
                assert found in contents
