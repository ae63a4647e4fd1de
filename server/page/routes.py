"""GET /, /page/programs and /static/...

What lives here: the endpoints of the page. What does not: its look and its behaviour
(templates/, static/). The page itself holds nothing worth a key; the programs come by a second
request, which the page makes with the key its user has typed.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from jinja2 import Environment, FileSystemLoader, select_autoescape
from starlette.responses import FileResponse, HTMLResponse, Response

from phloem.server.http.replies import RequestError
from phloem.server.http.state import State
from phloem.server.page.forms import form_of
from phloem.server.programs.dependencies import Manager

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_HERE = Path(__file__).parent
_TEMPLATES = Environment(
    loader=FileSystemLoader(_HERE / "templates"), autoescape=select_autoescape()
)
_FILES = {"page.js": "text/javascript", "page.css": "text/css"}
_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@router.get("/")
async def page(state: State) -> Response:
    """The page, without programs."""
    html = _TEMPLATES.get_template("page.html").render(asks_for_key=bool(state.keys))
    return HTMLResponse(html, headers=_HEADERS)


@router.get("/page/programs")
async def programs(manager: Manager) -> Response:
    """The forms of all programs, to be put into the page."""
    forms = [form_of(one) for one in manager.catalog]
    html = _TEMPLATES.get_template("programs.html").render(forms=forms)
    return HTMLResponse(html, headers=_HEADERS)


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """The page's script and its style."""
    if name not in _FILES:
        raise RequestError(404, "there is no such file", code="not_found")
    return FileResponse(_HERE / "static" / name, media_type=_FILES[name], headers=_HEADERS)
