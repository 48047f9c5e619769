"""Every end has a limit, also against a server that takes connections and never answers, and says what goes on where."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import end_agent, run_script

#: What a program may do; all of them end when uploads to the silent server are under way.
ENDS = {
    "with Uploader": "with uploader(drain_at_exit_s=0.2) as end: end.put(file, 'x')",
    "with Uploader that nothing gets on of": "with uploader(give_up_s=0.2) as end: end.put(file, 'x')",
    "with ObjectStoreLogger": "with store_logger(drain_at_exit_s=0.2) as end: end.upload_file(None, 'x', file)",
    "with Logger": "with logger(store_logger(drain_at_exit_s=0.2)) as end: end.upload_file('x', file)",
    "Logger at the end of a fit": """
with logger(store_logger(drain_at_exit_s=0.2)) as end:
    end.upload_file('x', file)
    end.run_event('fit_end')
    print('after the fit')
""",
    "Logger.close(timeout_s)": """
end = logger(store_logger())
end.run_event('init')
end.upload_file('x', file)
end.close(timeout_s=0.2)
""",
    "Logger.close(timeout_s) with files that wait for the store": """
end = logger(store_logger(), RunFolderLogger(tmp / 'runs'))
end.run_event('init')
end.log_metrics({'loss': 1.0}, 0)
end.upload_file('x', file)
end.close(timeout_s=0.2)
""",
    "the exit of a Logger": """
end = logger(store_logger(drain_at_exit_s=0.2))
end.run_event('init')
end.upload_file('x', file)
""",
    "fsspec at the exit": """
fs = fsspec.filesystem('wherry', target_protocol='s3', target_options=options, config=wherry.Config(drain_at_exit_s=0.2))
fs.pipe_file('s3://bucket/x', b'bytes')
""",
}

SCRIPT = """
import json, sys, threading, fsspec, wherry
from pathlib import Path
from wherry.loggers import Logger, MirrorLogger, ObjectStoreLogger, RunFolderLogger, State

tmp, options = Path(sys.argv[1]), json.loads(sys.argv[2])
file = tmp / "file"
file.write_bytes(b"bytes")

def uploader(**limits):
    return wherry.Uploader("s3://bucket", storage_options=options, config=wherry.Config(**limits))

def store_logger(**limits):
    return ObjectStoreLogger("s3://bucket", storage_options=options, config=wherry.Config(**limits))

def logger(*destinations):
    return Logger(State("run"), destinations)
"""


@pytest.fixture
def silent_options(tmp_path: Path) -> Iterator[dict[str, object]]:
    """What opens a bucket of an S3 server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield {"endpoint_url": url, "aws_access_key_id": "key", "aws_secret_access_key": "secret"}


def run(script: str, tmp_path: Path, options: dict[str, object]) -> str:
    spool = tmp_path / "spool"
    with end_agent(spool):
        return run_script(SCRIPT + script, tmp_path, json.dumps(options), env={"WHERRY_SPOOL": os.fspath(spool)}, timeout_s=100.0)


@pytest.mark.parametrize("end", ENDS)
def test_every_end_has_a_limit_and_says_what_goes_on_where(tmp_path: Path, silent_options: dict[str, object], end: str) -> None:
    said = run(ENDS[end], tmp_path, silent_options)
    why = "as nothing has got on for 0.2 s" if "nothing gets on" in end else "after "
    assert re.search(rf"\d uploads? to s3://bucket/ (is|are) not finished {why}", said)
    assert "they go on in the background" in said
    assert f"To finish them: wherry drain --spool {tmp_path / 'spool'}" in said
    assert "Traceback" not in said


def test_a_close_that_gives_up_raises_and_is_closed(tmp_path: Path, silent_options: dict[str, object]) -> None:
    said = run(
        """
end = uploader(give_up_s=0.2)
end.put(file, 'x')
try:
    end.close()
except TimeoutError as error:
    print('raised', error)
end.close()
fs = fsspec.filesystem('wherry', target_protocol='s3', target_options=options)
fs.pipe_file('s3://bucket/x', b'bytes')
fs.pipe_file('s3://other/x', b'bytes')
try:
    fs.close(timeout_s=0.2)
except TimeoutError as error:
    print('raised', error)
fs.close()
""",
        tmp_path,
        silent_options,
    )
    assert "raised 1 upload to s3://bucket/ is not finished as nothing has got on for 0.2 s; they go on" in said
    assert 2 == said.count("raised")


def test_a_mirror_that_gives_up_names_the_command_that_goes_on(tmp_path: Path, silent_options: dict[str, object]) -> None:
    """Under a Logger, and by itself."""
    said = run(
        """
for name in 'ab':
    (tmp / name).mkdir()
    (tmp / name / 'x.log').write_text('line\\n')
end = logger(MirrorLogger(tmp / 'a', 's3://bucket/a', storage_options=options, writer='w'))
end.run_event('init')
mirror = wherry.Mirror(tmp / 'b', 's3://bucket/b', storage_options=options, writer='w')
closing = threading.Thread(target=mirror.close, args=(0.2,))
closing.start()
end.close(timeout_s=0.2)
closing.join()
""",
        tmp_path,
        silent_options,
    )
    for name in "ab":
        assert f"or: wherry mirror resume {tmp_path / name} s3://bucket/{name} --writer w --spool {tmp_path / 'spool'}" in said
