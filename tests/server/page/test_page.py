"""The page for people: what it holds, and that nothing in it is taken for markup."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import phloem as ph
from phloem.programs.testing import ScriptedBackend
from phloem.server.http.keys import hash_key
from phloem.server.page.forms import Field, form_of
from phloem.server.programs.catalog import Catalog
from tests.server.harness import serving


class Size(Enum):
    small = "s"
    large = "l"


@ph.function
def every(
    s: ph.State, text: str, size: Size, count: int = 3, ratio: float | None = None,
    loud: bool = False, tags: list[str] = [],  # noqa: B006 - the default is what is tested
) -> None:  # fmt: skip
    """Says <b>everything</b>."""
    s += text


def test_fields_follow_the_schema() -> None:
    """Each argument becomes a field of its kind, with default and choices."""
    form = form_of(Catalog([every]).get("every"))
    assert form.fields == (
        Field("text", "text", True, ""),
        Field("size", "choice", True, "", ('"s"', '"l"')),
        Field("count", "integer", False, "3"),
        Field("ratio", "json", False, ""),
        Field("loud", "boolean", False, "false"),
        Field("tags", "json", False, "[]"),
    )


def test_the_page_shows_programs_as_escaped_forms() -> None:
    """The page loads its script and style from the server; the forms hold no foreign markup."""
    with serving(ScriptedBackend([]), [every]) as server:
        page = server.client.get("/")
        assert page.headers["content-security-policy"].startswith("default-src 'self'")
        for name in ("page.js", "page.css"):
            assert f"static/{name}" in page.text
            assert server.client.get(f"/static/{name}").status_code == 200
        forms = server.client.get("/page/programs").text
        assert 'data-program="every"' in forms
        assert "&lt;b&gt;everything&lt;/b&gt;" in forms
        assert '<option value="&#34;s&#34;"' in forms
        assert server.client.get("/static/..%2Froutes.py").status_code == 404


def test_with_keys_the_page_asks_for_one(tmp_path: Path) -> None:
    """The empty page is open to all, the programs are not."""
    file = tmp_path / "keys"
    file.write_text(hash_key("a", "ka"))
    with serving(ScriptedBackend([]), [every], api_key_file=file) as server:
        page = server.client.get("/")
        assert page.status_code == 200
        assert 'id="key"' in page.text
        assert "every" not in page.text
        assert server.client.get("/page/programs").status_code == 401
        shown = server.client.get("/page/programs", headers={"authorization": "Bearer ka"})
        assert 'data-program="every"' in shown.text
