"""``wherry ui``: runs, curves, media, logs and checkpoints in a page of this machine."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from wherry.cli.arguments import FileOption, JsonOption, PairsOption, open_target, parse_target, print_err, print_out
from wherry.errors import NotFoundError

if TYPE_CHECKING:
    from wherry.web.server import Address, Server


def ui(
    uris: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URI|DIR]...", help="A prefix of runs, a run, or a folder; the current folder without it."),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="N", min=0, max=65_535, help="Else the next free one from 8765 on; 0: any.")
    ] = None,
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="Listen there; any other than 127.0.0.1 needs a token."),
    ] = "127.0.0.1",
    token: Annotated[bool, typer.Option("--token", help="Ask for a token at 127.0.0.1, too: others use this machine.")] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at runs in a page: curves, media, logs, checkpoints, uploads.

    It reads straight from where the runs are, also while they are written, and
    changes nothing. Ctrl-C ends it. Needs pip install 'wherry[ui]'.
    """
    from wherry.web import uplot
    from wherry.web.server import Server

    parsed = [parse_target(uri) for uri in uris or ["."]]
    for target in parsed:
        if target.scheme == "file" and not Path("/", target.prefix).is_dir():
            raise NotFoundError("there is no such folder", operation="ui", uri=str(target))
    targets = [str(target) for target in parsed]
    _, options = open_target(targets[0], option, options_file)
    server = Server(targets, host=host, port=port, needs_token=token, options=options)
    if not uplot.is_there():
        print_err(uplot.MISSING)

    serve(server, no_open=no_open, as_json=as_json)


def serve(server: Server, *, no_open: bool, page: str = "", as_json: bool = False) -> None:
    """Print the address, open it where there is a screen, and answer until Ctrl-C. `page`: what follows the address' slash."""
    address = server.address

    def tell() -> None:
        if as_json:
            typer.echo(json.dumps({"url": f"{address.url}{page}", "host": address.host, "port": address.port}))
        else:
            print_out(f"{address.url}{page}   (Ctrl-C ends it)")
        if not as_json and "SSH_CONNECTION" in os.environ and address.token is None:
            there = f"{address.port}:127.0.0.1:{address.port}"
            print_out(f"from your own machine: ssh -L {there} {socket.gethostname()}")
        sys.stdout.flush()
        if not no_open:
            open_browser(address, page)

    try:
        server.run(tell)
    except KeyboardInterrupt:
        if not as_json:
            print_out("ended")


def show_run(run: tuple[str, Mapping[str, object]], *, no_open: bool) -> None:
    """The page of one run, by its URI and storage options, until Ctrl-C."""
    from wherry.web import uplot
    from wherry.web.server import Server

    uri, options = run
    if not uplot.is_there():
        print_err(uplot.MISSING)
    serve(Server([uri], options=options), no_open=no_open, page=f"run?id={quote(parse_target(uri).prefix.rpartition('/')[2])}")


def open_browser(address: Address, page: str = "") -> None:
    """Open the page where there is a screen. Not with a token: everybody on this machine can read a browser's command line."""
    import webbrowser

    has_screen = sys.platform == "darwin" or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if has_screen and address.token is None:
        webbrowser.open(address.url + page)
