"""The debug viewer: traces as pages, under `/traces` of the server and in `phloem trace ui`."""

from phloem.server.viewer.render import render_run

__all__ = ["render_run"]
