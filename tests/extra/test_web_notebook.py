"""`wherry.ui()` in a real notebook: its kernel answers the page, and Chromium shows it where the notebook puts it.

Needs Chromium; the notebook is run by nbclient, as `jupyter execute` does it.
"""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from browser import browser
from servers.web_page import make_runs
from wherry.web import uplot

pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of the folder, as Jupyter's is: on this machine, at another port than the page."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_output_of_a_cell_is_the_page(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    assert uplot.is_there(), uplot.MISSING
    uri = make_runs(tmp_path / "runs")
    notebook = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    code = f"import wherry\nwherry.ui({str(uri)!r}, height=640)"
    notebook.cells = [nbformat.v4.new_code_cell(code)]  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=120)
    with client.setup_kernel(), served(tmp_path) as root, browser() as window:
        client.execute_cell(notebook.cells[0], 0)
        (output,) = notebook.cells[0].outputs
        (tmp_path / "notebook.html").write_text(f"<!doctype html><title>notebook</title>{output.data['text/html']}")
        window.open(f"{root}/notebook.html")
        assert 640 == window.run("return document.querySelector('iframe').clientHeight")
        window.enter_frame()
        window.wait_for("document.querySelectorAll('table.runs tbody tr').length === 3", "the runs")
        window.run("document.querySelector('tr[data-id=amber] a').click()")
        window.wait_for("document.querySelectorAll('.plot canvas').length > 0", "the curves")
        assert [] == [line for line in window.console() if "favicon.ico" not in line]
