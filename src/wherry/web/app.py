"""The application: which address leads where, and what an error looks like."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from wherry.errors import AccessDeniedError, ConfigError, NotFoundError, WherryError
from wherry.redact import redact
from wherry.web import answers, html_pages, media_files, uplot
from wherry.web.guard import Access, Guard
from wherry.web.live import live
from wherry.web.site import Site

_STATIC = Path(__file__).parent / "static"
#: The first match counts.
_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (ConfigError, 400),
    (NotFoundError, 404),
    (FileNotFoundError, 404),
    (AccessDeniedError, 403),
)


def make_app(site: Site, access: Access) -> Starlette:
    """The page of the site, behind its guard."""
    routes = [
        Route("/", html_pages.runs),
        Route("/run", html_pages.run),
        Route("/compare", html_pages.compare),
        Route("/rail", html_pages.rail),
        Route("/data/points", answers.points),
        Route("/data/csv", answers.csv),
        Route("/data/log", answers.log),
        Route("/data/moment", answers.moment),
        Route("/data/command", answers.command),
        Route("/live", live),
        Route("/file", media_files.file),
        Route("/favicon.ico", html_pages.icon),
        Mount("/static", StaticFiles(directory=_STATIC)),
        Mount("/uplot", StaticFiles(directory=uplot.FOLDER, check_dir=False)),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={WherryError: _error, OSError: _error, HTTPException: _error, Exception: _error},
    )
    app.state.site = site
    return app


def _error(request: Request, error: Exception) -> Response:
    """A page that says what is wrong, with the status that belongs to it."""
    if isinstance(error, HTTPException):
        return html_pages.error(request, error.status_code, str(error.detail))
    if not isinstance(error, (WherryError, OSError)):
        return html_pages.error(request, 500, "An error of wherry itself; its traceback is in the terminal.")
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 502)
    return html_pages.error(request, status, redact(str(error)))
