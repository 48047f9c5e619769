"""RunFolderLogger: folders that are continued, removed or uploaded, killed processes, and several ranks and processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from programs import Program
from run_folders import Recorder, check_index, files_of, lines_of, log_all_kinds, metrics_of
from wherry.loggers.destinations.object_store import ObjectStoreLogger
from wherry.loggers.destinations.run_folder import RunFolderConfig, RunFolderLogger
from wherry.loggers.logger import Logger
from wherry.loggers.run.event import Event
from wherry.loggers.run.state import State


def run_script(text: str, *arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **more)


def test_a_folder_is_continued_and_steps_may_go_back(tmp_path: Path) -> None:
    for first in (0, 5):
        with RunFolderLogger(tmp_path) as run:
            for step in range(first, first + 8):
                run.log_metrics({"loss": step}, step)
                run.log_images(np.full((4, 4), step / 20), "i", step=step)
            run.log_table(["a"], [[first]], "t", first)
        if first == 0:
            growing = {name for name in files_of(tmp_path) if not name.endswith((".parquet", "summary.json"))}
            before = {name: (tmp_path / name).read_bytes() for name in growing}
    assert [line["step"] for line in lines_of(tmp_path / "metrics.jsonl")] == [*range(8), *range(5, 13)]
    assert len(check_index(tmp_path)) == 16
    assert {"media/images/i/5.png", "media/images/i/5-1.png", "media/images/i/12.png"} <= files_of(tmp_path)
    for name, data in before.items():
        assert (tmp_path / name).read_bytes().startswith(data), name


@pytest.mark.parametrize("tail", [b'{"t": 1.0, "st', b"\0\0\0", b"\xff\xfe", b'{"a": 1}\n{"b'])
def test_a_torn_last_line_costs_that_line_only(tail: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"loss": 1}, 0)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"loss": 2}, 1)
    assert metrics_of(tmp_path)[0] == {"step": 0, "loss": 1}
    assert metrics_of(tmp_path)[-1] == {"step": 1, "loss": 2}
    assert "its last line was cut off" in caplog.text


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "long": "' + "x" * 200_000 + '"}')
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"loss": 2}, 1)
    assert [line["step"] for line in metrics_of(tmp_path)] == [0, 1]


def test_a_kill_after_flush_loses_nothing(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        sys.path[:0] = sys.argv[2:]
        import numpy as np
        from test_run_folder import log_all_kinds
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        run = RunFolderLogger(sys.argv[1])
        for step in range(5):
            log_all_kinds(run, step)
        run.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run_script(script, tmp_path / "run", Path(__file__).parent, Path(__file__).parent.parent)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = tmp_path / "run"
    assert [line["step"] for line in metrics_of(folder)] == list(range(5))
    assert len(check_index(folder)) == 5 * 4
    assert {"hparams.json", "text.jsonl", "traces.jsonl"} <= files_of(folder)
    assert len(lines_of(folder / "histograms.jsonl")) == 5
    assert len(lines_of(folder / "tables/scores.jsonl")) == 10


def test_figures_and_texts_survive_a_kill_without_flush(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        run = RunFolderLogger(sys.argv[1])
        for step in range(100):
            run.log_metrics({"loss": step}, step)
        run.log_text("last words")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run_script(script, tmp_path).returncode == -signal.SIGKILL
    assert [line["step"] for line in metrics_of(tmp_path)] == list(range(100))
    assert lines_of(tmp_path / "text.jsonl")[0]["text"] == "last words"


def test_a_kill_at_any_instant_leaves_whole_files_and_a_folder_that_is_continued(tmp_path: Path) -> None:
    script = """
        import sys
        import numpy as np
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        run = RunFolderLogger(sys.argv[1])
        picture = np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8)
        run.log_images(picture, "first", step=0)
        run.flush()
        for step in range(100_000):
            run.log_metrics({"loss": step}, step)
            run.log_images(picture, "i", step=step)
            run.log_table(["a"], [[step]] * 10, "t", step)
            run.log_hyperparameters({"last": step})
            if step % 7 == 0:
                print(step, flush=True)
    """
    for i in range(4):
        command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
        with Program(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(2 + 3 * i):
                assert process.stdout.readline()
            process.kill()
        assert json.loads((tmp_path / "hparams.json").read_text())["last"] >= 0
        check_index(tmp_path)
        for path in (tmp_path / "media/images").rglob("*.png"):
            with Image.open(path) as picture:
                picture.load()
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"loss": -1}, -1)
        run.log_table(["a"], [[-1]], "t", -1)
    assert metrics_of(tmp_path)[-1] == {"step": -1, "loss": -1}
    assert lines_of(tmp_path / "tables/t.jsonl")[-1]["a"] == -1
    assert not (tmp_path / ".tmp").exists()
    assert not (tmp_path / ".lock").exists()


def test_of_two_processes_one_writes_and_the_other_is_told_which(tmp_path: Path) -> None:
    script = "import sys\nfrom wherry.loggers import RunFolderLogger\nRunFolderLogger(sys.argv[1]).log_metrics({'a': 2})"
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"a": 1})
        other = run_script(script, tmp_path)
        assert f"is being written by process {os.getpid()} on" in other.stderr
        assert "give this run another name" in other.stderr
        with pytest.raises(RuntimeError, match="is being written by process"):
            RunFolderLogger(tmp_path).log_metrics({"a": 3})
    assert metrics_of(tmp_path) == [{"step": 0, "a": 1}]
    assert run_script(script, tmp_path).returncode == 0
    assert [line["a"] for line in metrics_of(tmp_path)] == [1, 2]


def test_a_folder_whose_process_was_killed_is_free_though_its_workers_live_on(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        run = RunFolderLogger(sys.argv[1])
        run.log_metrics({"a": 1})
        if os.fork() == 0:
            sys.stdout.close(); os.close(1); os.close(2)
            sys.stdin.read()
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    reader, writer = os.pipe()
    try:
        assert run_script(script, tmp_path, stdin=reader).returncode == -signal.SIGKILL
        with RunFolderLogger(tmp_path) as run:
            run.log_metrics({"a": 2})
    finally:
        os.close(writer)
        os.close(reader)
    assert [line["a"] for line in metrics_of(tmp_path)] == [1, 2]


def test_the_child_of_a_fork_writes_files_of_its_own_and_does_not_end_the_folder(tmp_path: Path) -> None:
    """In an interpreter of its own: what threads and pools other tests have left is not forked along."""
    script = """
    import multiprocessing, sys, warnings
    from pathlib import Path
    import numpy as np
    from wherry.loggers import RunFolderLogger

    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: that it works is the point
    folder = Path(sys.argv[1])
    run = RunFolderLogger(folder)
    run.log_metrics({"parent": 1}, 0)
    run.log_images(np.zeros((4, 4)), "i", step=0)

    def work():
        run.log_metrics({"child": 1}, 1)
        run.log_images(np.ones((4, 4)), "i", step=0)
        run.close()

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    assert child.exitcode == 0, child.exitcode
    print(child.pid)
    assert not (folder / "metrics.parquet").exists()
    try:
        RunFolderLogger(folder).log_metrics({"a": 1})
    except RuntimeError as error:
        assert "is being written by" in str(error), error
    else:
        raise AssertionError("the folder is the parent's")
    run.log_metrics({"parent": 2}, 2)
    run.close()
    """
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    own = tmp_path / "children" / done.stdout.strip()
    assert [line["step"] for line in metrics_of(tmp_path)] == [0, 2]
    assert [line["step"] for line in metrics_of(own)] == [1]
    assert [len(check_index(tmp_path)), len(check_index(own))] == [1, 1]
    assert pq.read_table(tmp_path / "metrics.parquet").num_rows == 2


def test_a_run_that_begins_in_a_child_has_its_folder_there(tmp_path: Path) -> None:
    script = """
    import multiprocessing, sys
    from wherry.loggers import Logger, State
    from wherry.loggers.destinations.run_folder import RunFolderLogger

    run = RunFolderLogger(sys.argv[1])

    def work():
        with Logger(State("r"), run) as logger:
            logger.log_metrics({"child": 1}, 1)

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    sys.exit(child.exitcode)
    """
    done = run_script(script, tmp_path)
    assert (0, "") == (done.returncode, done.stderr)
    assert files_of(tmp_path) == {"environment.json", "metrics.jsonl", "metrics.parquet", "wherry-summary.json"}


def test_several_threads_may_log(tmp_path: Path) -> None:
    def work(thread: int) -> None:
        for i in range(200):
            run.log_metrics(dict.fromkeys([f"thread{thread}", "x" * 500], i), i)
            if i % 20 == 0:
                run.log_images(np.zeros((4, 4)), "shared", step=i)
                run.log_hyperparameters({f"thread{thread}": i})

    with RunFolderLogger(tmp_path) as run:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(lines_of(tmp_path / "metrics.jsonl")) == 1000
    assert len(check_index(tmp_path)) == 50
    assert json.loads((tmp_path / "hparams.json").read_text()) == {f"thread{i}": 180 for i in range(5)}


def test_ranks_other_than_0_write_nothing_also_without_a_router(tmp_path: Path) -> None:
    state = State("r", rank=1, world_size=2)
    direct = RunFolderLogger(tmp_path / "direct", state=state)
    log_all_kinds(direct)
    direct.flush()
    direct.close()
    with Logger(state, RunFolderLogger(tmp_path / "routed")) as logger:
        logger.log_metrics({"a": 1})
    assert list(tmp_path.iterdir()) == []


def test_with_an_option_each_rank_has_its_folder(tmp_path: Path) -> None:
    for rank in range(3):
        run = RunFolderLogger(tmp_path, config=RunFolderConfig(rank_zero_only=False))
        with Logger(State("r", rank=rank, world_size=3), run) as logger:
            logger.log_metrics({"rank": rank})
    names = ("environment.json", "metrics.jsonl", "metrics.parquet", "wherry-summary.json")
    assert files_of(tmp_path) == {f"rank{rank}/{name}" for rank in range(3) for name in names}


def test_media_are_uploaded_at_once_and_what_grows_at_the_close_and_each_once(tmp_path: Path) -> None:
    recorder = Recorder()
    run = RunFolderLogger(tmp_path / "{run_name}")
    with Logger(State("r{1}"), [run, recorder]) as logger:
        log_all_kinds(run, 1)
        run.flush()
        early = [name for name, _ in recorder.uploads]
        logger.run_event(Event.EPOCH_END)
        logger.run_event(Event.FIT_END)
        assert len(recorder.uploads) == len(early)
    assert set(early) == {f"r{{1}}/media/{name}" for name in ("audio/tone/1.wav", "images/pictures/1.png")} | {
        f"r{{1}}/media/{name}" for name in ("video/clip/1.mp4", "pointclouds/cloud/1.ply")
    }
    names = [name for name, _ in recorder.uploads]
    assert len(names) == len(set(names))
    assert set(names) == {f"r{{1}}/{name}" for name in files_of(tmp_path / "r{1}")}
    for name, data in recorder.uploads:
        assert (tmp_path / name).read_bytes() == data


def test_the_classes_of_masks_are_uploaded_once_however_often_they_are_given(tmp_path: Path) -> None:
    recorder = Recorder()
    with Logger(State("r"), [RunFolderLogger(tmp_path / "r"), recorder]) as logger:
        for step in range(4):
            labels = {step: "sky", 0: "road"} if step < 3 else {0: "road"}
            masks = {"truth": np.zeros((4, 4), int)}
            logger.log_images(np.zeros((4, 4)), "street", step=step, masks=masks, mask_class_labels=labels)
    sent = [data for name, data in recorder.uploads if name == "r/media/masks/street/classes.json"]
    assert [json.loads(data) for data in sent] == [{"0": "road", "1": "sky", "2": "sky"}]


def test_what_was_logged_before_the_run_began_is_uploaded_too(tmp_path: Path) -> None:
    recorder = Recorder()
    run = RunFolderLogger(tmp_path / "run")
    run.log_images(np.zeros((4, 4)), "early", step=0)
    run.flush()
    with Logger(State("r"), [run, recorder]):
        pass
    assert "r/media/images/early/0.png" in {name for name, _ in recorder.uploads}


def test_files_of_others_in_the_folder_are_not_uploaded_and_uploads_can_be_off(tmp_path: Path) -> None:
    for upload in (True, False):
        recorder = Recorder()
        (tmp_path / "tb").mkdir(exist_ok=True)
        (tmp_path / "tb/events").write_bytes(b"x")
        with Logger(State("r"), [RunFolderLogger(tmp_path, config=RunFolderConfig(upload=upload)), recorder]) as logger:
            logger.log_metrics({"a": 1})
        assert {name for name, _ in recorder.uploads if "environment" not in name} == (
            {"r/metrics.jsonl", "r/metrics.parquet", "r/wherry-summary.json"} if upload else set()
        )


def test_a_store_gets_the_run_folder(tmp_path: Path) -> None:
    store = ObjectStoreLogger(tmp_path / "store", spool=tmp_path / "spool")
    run = RunFolderLogger(tmp_path / "local/{run_name}")
    with Logger(State("r"), [store, run]):
        log_all_kinds(run, 1)
    assert files_of(tmp_path / "store") == {f"r/{name}" for name in files_of(tmp_path / "local/r")}
    check_index(tmp_path / "store/r")


def test_a_full_disk_is_an_error_each_file_stays_whole_and_logging_goes_on_when_there_is_room(tmp_path: Path) -> None:
    script = """
        import resource, signal, sys
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        run = RunFolderLogger(sys.argv[1])
        run.log_metrics({"loss": 0}, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        try:
            run.log_metrics({"pad": "x" * 200}, 1)
        except OSError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        run.log_metrics({"loss": 2}, 2)
        run.close()
    """
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "metrics.jsonl" in done.stdout
    assert "later calls are tried again" in done.stdout
    assert [line["step"] for line in metrics_of(tmp_path)] == [0, 2]


def test_media_that_cannot_be_written_are_one_error_of_flush_and_leave_nothing(tmp_path: Path) -> None:
    script = """
        import resource, signal, sys
        import numpy as np
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        run = RunFolderLogger(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        for step in range(5):
            run.log_images(np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8), "i", step=step)
        for _ in range(2):
            try:
                run.flush()
                print("flushed")
            except OSError as error:
                print("failed", error.strerror)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        run.log_images(np.zeros((4, 4)), "i", step=9)
        run.close()
    """
    done = run_script(script, tmp_path)
    assert done.stdout.splitlines() == ["failed File too large", "flushed"], done.stderr
    assert files_of(tmp_path) == {"media/images/i/9.png", "media/index.jsonl"}
    check_index(tmp_path)


def test_a_folder_that_is_removed_is_made_anew_by_the_next_call_and_that_is_said_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import shutil

    folder = tmp_path / "run"
    run = RunFolderLogger(folder)
    run.log_hyperparameters({"lr": 0.1})
    run.log_metrics({"a": 1}, 0)
    run.log_text("t")
    shutil.rmtree(folder)
    run.log_metrics({"a": 2}, 1)
    run.log_text("t")
    (said,) = (record.message for record in caplog.records)
    assert said.startswith(f"the folder {folder} was removed or replaced while it was being written")
    with pytest.raises(RuntimeError, match="is being written by"):
        RunFolderLogger(folder).log_metrics({"a": 4})
    run.close()
    assert [line["step"] for line in metrics_of(folder)] == [1]
    assert len(lines_of(folder / "text.jsonl")) == 1
    assert json.loads((folder / "hparams.json").read_text()) == {"lr": 0.1}
    assert len(caplog.records) == 1


def test_a_folder_that_is_moved_away_is_said_by_the_next_flush_and_a_new_one_is_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    with Logger(State("r"), RunFolderLogger(folder)) as logger:
        logger.log_metrics({"a": 0})
        folder.rename(tmp_path / "elsewhere")
        logger.run_event(Event.EPOCH_END)
        logger.log_metrics({"a": 9})
    (said,) = (record.message for record in caplog.records)
    assert "was removed or replaced while it was being written" in said
    assert [line["a"] for line in metrics_of(folder)] == [9]


def test_a_file_that_is_removed_alone_is_made_anew_and_the_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunFolderLogger(tmp_path) as run:
        run.log_text("before")
        run.log_metrics({"a": 0})
        (tmp_path / "metrics.jsonl").unlink()
        run.log_metrics({"a": 1})
        run.log_text("after")
    (said,) = (record.message for record in caplog.records)
    assert said.startswith(f"{tmp_path / 'metrics.jsonl'} was removed or replaced")
    assert [line["a"] for line in metrics_of(tmp_path)] == [1]
    assert [line["text"] for line in lines_of(tmp_path / "text.jsonl")] == ["before", "after"]


def test_a_lock_that_is_removed_alone_is_taken_again_and_nothing_is_said_to_be_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"a": 0})
        (tmp_path / ".lock").unlink()
        run.flush()
        run.log_metrics({"a": 1})
        with pytest.raises(RuntimeError, match="is being written by"):
            RunFolderLogger(tmp_path).log_metrics({"a": 2})
    assert [line["a"] for line in metrics_of(tmp_path)] == [0, 1]
    assert caplog.messages == []


def test_a_removed_folder_that_another_run_has_taken_is_left_to_it(tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "run"
    run = RunFolderLogger(folder)
    run.log_metrics({"a": 1})
    shutil.rmtree(folder)
    with RunFolderLogger(folder) as other:
        other.log_metrics({"b": 1})
        for _ in range(2):
            with pytest.raises(RuntimeError, match="is being written by"):
                run.log_metrics({"a": 2})
    run.log_metrics({"a": 3})
    run.close()
    assert metrics_of(folder) == [{"step": 0, "b": 1}, {"step": 3, "a": 3}]


def test_a_place_where_nothing_can_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        RunFolderLogger(tmp_path / "file/run").log_metrics({"a": 1})


def test_after_close_each_call_is_a_clear_error_and_close_does_nothing(tmp_path: Path) -> None:
    run = RunFolderLogger(tmp_path)
    run.log_metrics({"a": 1})
    run.close()
    run.close()
    run.flush()
    with pytest.raises(RuntimeError, match=r"closed.*make a new one"):
        run.log_metrics({"a": 2})
    with pytest.raises(RuntimeError, match=r"closed.*make a new one"):
        run.log_images(np.zeros((4, 4)))


def test_a_program_that_ends_without_close_loses_nothing(tmp_path: Path) -> None:
    script = """
        import sys
        import numpy as np
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        run = RunFolderLogger(sys.argv[1])
        for step in range(3):
            run.log_images(np.random.default_rng(0).integers(0, 256, (3, 200, 200), np.uint8), "i", step=step)
            run.log_video(np.zeros((5, 3, 64, 64), np.uint8), "v", step=step)
    """
    done = run_script(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(check_index(tmp_path)) == 6


def test_without_its_extra_figures_work_and_media_say_what_to_install(tmp_path: Path) -> None:
    script = """
        import sys
        for name in ("PIL", "av", "pyarrow"):
            sys.modules[name] = None
        import numpy as np
        from wherry.loggers.destinations.run_folder import RunFolderLogger
        with RunFolderLogger(sys.argv[1]) as run:
            run.log_metrics({"a": 1})
            run.log_audio(np.zeros(10))
            for log in (run.log_images, run.log_video):
                try:
                    log(np.zeros((3, 8, 8)))
                except ImportError as error:
                    print(error)
    """
    done = run_script(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("pip install 'wherry[media]'") == 2
    assert files_of(tmp_path) == {"metrics.jsonl", "wherry-summary.json", "media/index.jsonl", "media/audio/Audio/0.wav"}
