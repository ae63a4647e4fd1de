"""Where nodes and edges are drawn."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.server.viewer.layout import GAP_X, HEIGHT, WIDTH, lay_out

NAMES = [f"n{number}" for number in range(8)]
EDGES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), st.just("next")), max_size=16
)


@settings(deadline=None)
@given(EDGES)
def test_nothing_overlaps_and_all_is_inside(edges):
    """Whatever the edges, loops and loose ends too, nodes keep apart and within the drawing."""
    layout = lay_out("n0", NAMES, edges)
    assert [node.id for node in layout.nodes] == NAMES
    for one, other in itertools.combinations(layout.nodes, 2):
        assert one.y != other.y or abs(one.x - other.x) >= WIDTH + GAP_X - 1e-6
    for node in layout.nodes:
        assert 0 <= node.x <= node.x + WIDTH <= layout.width
        assert 0 <= node.y <= node.y + HEIGHT <= layout.height
    assert len(layout.routes) == len(edges)


@settings(deadline=None)
@given(EDGES)
def test_only_loops_lead_up(edges):
    """Edges that close no loop lead down."""
    layout = lay_out("n0", NAMES, edges)
    y = {node.id: node.y for node in layout.nodes}
    up = [(r.source, r.target) for r in layout.routes if y[r.source] >= y[r.target]]
    down = [(r.source, r.target) for r in layout.routes if y[r.source] < y[r.target]]
    reach = {name: {name} for name in NAMES}
    for _ in NAMES:
        for source, target in down:
            reach[source] |= reach[target]
    for source, target in up:
        assert source in reach[target]


def test_a_chain_is_straight_and_a_fork_is_even():
    """Steps in a row stand below each other; both ways of a branch are as far from it."""
    edges = [
        ("n0", "n1", "next"), ("n1", "n2", "true"), ("n1", "n3", "false"),
        ("n2", "n4", "next"), ("n3", "n4", "next"), ("n4", "n5", "next"),
    ]  # fmt: skip
    layout = lay_out("n0", NAMES[:6], edges)
    x = {node.id: round(node.x, 3) for node in layout.nodes}
    assert x["n0"] == x["n1"] == x["n4"] == x["n5"]
    assert x["n1"] - x["n2"] == x["n3"] - x["n1"] > 0


def test_edges_to_unknown_nodes_are_left_out():
    """A graph that names what it does not have is drawn without it."""
    assert lay_out("n0", ["n0"], [("n0", "gone", "next")]).routes == ()
