"""The arithmetic of the program benchmark: optimum, floor, equal work, cells and report."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.program_bench.cells import CORE, Key, Store, plan, salt_of
from benchmarks.program_bench.counting import (
    Calibration,
    TokenTrie,
    expected_seconds,
    floor_seconds,
    invalid_outputs,
    optimal_prefill,
    percentile,
    unequal_steps,
)
from benchmarks.program_bench.engines import ENGINES, Places
from benchmarks.program_bench.plot import svg
from benchmarks.program_bench.report import markdown, put_into
from benchmarks.program_bench.session import Options, measure
from benchmarks.program_bench.shapes import SHAPES, rows_of
from benchmarks.program_bench.summary import summarise
from benchmarks.program_bench.tally import Tally


def test_trie_counts_each_prefix_once() -> None:
    """Inserting a sequence returns how many of its prefixes were not there."""
    trie = TokenTrie()
    assert [trie.insert(t) for t in ([1, 2, 3], [1, 2, 4], [2, 3], [1, 2], [])] == [3, 1, 2, 0, 0]


def test_optimum_shares_prefixes_and_leaves_out_what_decoding_computed() -> None:
    """A prompt's tokens count once, a generated token not at all unless it was the last one."""
    first = ([1, 2, 3], [1, 2, 3, 7, 8])  # 3 new; 7 is computed by decoding, 8 is not
    sibling = ([1, 2, 4], [1, 2, 4])  # 1 new
    later = ([1, 2, 3, 7, 8, 5], [1, 2, 3, 7, 8, 5, 6])  # 8 and 5
    assert optimal_prefill([first, sibling, later]) == 3 + 1 + 2


def test_floor_is_prefill_and_a_step_for_each_token() -> None:
    """1,000 prompt tokens at 500 a second and 20 steps of 10 ms take 2.2 s."""
    calibration = Calibration({1: 0.010, 2: 0.014, 8: 0.026}, 500.0)
    assert floor_seconds(calibration, 1000, 20) == pytest.approx(2.2)


def test_passes_between_measured_widths_are_interpolated_and_wide_ones_are_prefill() -> None:
    """A pass of 5 rows lies half way between those of 2 and 8; 100 rows cost what prefill does."""
    calibration = Calibration({1: 0.010, 2: 0.014, 8: 0.026}, 500.0)
    assert calibration.pass_s(5) == pytest.approx(0.020)
    assert expected_seconds(calibration, {1: 3, 100: 2}) == pytest.approx(0.030 + 0.4)


def test_percentile_takes_the_nearest_rank() -> None:
    """Of twenty values the 95th percentile is the nineteenth."""
    assert percentile(list(range(1, 21)), 0.95) == 19
    assert percentile([3.0], 0.95) == 3.0


def test_outputs_against_a_constraint_and_missing_steps_are_found() -> None:
    """Both the step and the text that breaks its constraint are named."""
    good = [*[("thoughts", "x"), ("answer", " 7")] * 5]
    assert invalid_outputs(SHAPES["vote"], [good]) == []
    wrong = invalid_outputs(SHAPES["vote"], [[*good[:-1], ("answer", " seven")], good[:-2]])
    assert wrong == [
        "program 0, answer: ' seven'",
        "program 1, thoughts: 4 times",
        "program 1, answer: 4 times",
    ]


def test_unequal_lengths_are_found() -> None:
    """Free steps must have their very length, constrained ones about that of the reference."""
    rag = SHAPES["rag"]
    lengths = {"closing": [48, 47], "answer": [44, 44], "verdict": [13]}
    assert unequal_steps(rag, lengths, {"answer": [38], "verdict": [13, 14]}) == [
        "answer: 44.0 tokens, elsewhere 38.0",
        "closing: 47 to 48 tokens, not 48",
    ]


def test_unknown_counts_stay_unknown() -> None:
    """A sum with a count that an engine does not give is not given either."""
    tally, more = Tally(), Tally()
    tally.call("a", 10, 4, 3)
    more.call("a", 10, None, 5)
    tally.add(more)
    assert (tally.prompt, tally.reused, tally.prefilled, tally.generated) == (20, None, None, 8)
    assert tally.lengths == {"a": [3, 5]}


def test_texts_of_a_cell_are_the_same_every_time_and_differ_from_the_first_token() -> None:
    """Equal salts give equal rows; another salt shares no start with them."""
    for name in SHAPES:
        assert rows_of(name, 4, 3) == rows_of(name, 4, 3)
        shared, rows = rows_of(name, 4, 3)
        other, others = rows_of(name, 6, 3)
        assert rows != others
        assert not shared or shared[:15] != other[:15]


def test_plan_has_the_core_set_first_and_every_cell_once() -> None:
    """The chain on every engine comes first; rounds and engines take turns."""
    engines = [ENGINES[name] for name in ("phloem-int4", "vllm", "sglang")]
    keys = plan(engines, 3, everything=True)
    assert len(keys) == len(set(keys)) == 3 * 3 * 24
    assert [(k.engine, k.shape, k.at_once, k.round) for k in keys[:3]] == [
        (engine.name, "chain", 1, 0) for engine in engines
    ]
    assert {(k.shape, k.at_once) for k in plan(engines[1:], 1, everything=False)} == set(CORE)


def test_salts_are_the_same_for_all_engines_and_apart_for_all_else() -> None:
    """Cells of one round and case get the same texts, all others and their warm-ups do not."""
    keys = plan(list(ENGINES.values()), 3, everything=True)
    salts: dict[int, set[tuple[str, int, int]]] = {}
    for key in keys:
        salts.setdefault(salt_of(key), set()).add((key.shape, key.at_once, key.round))
    assert all(len(cases) == 1 for cases in salts.values())
    assert not {salt + 1 for salt in salts} & set(salts)


def test_store_keeps_a_cell_and_its_key(tmp_path: Path) -> None:
    """What was written is there for another process, under the same key."""
    key = Key("phloem-int4", "few_shot", 8, 1)
    Store(tmp_path).write(key, {"a": 1})
    assert Store(tmp_path).has(key)
    assert Store(tmp_path).all() == {key: {"a": 1}}


def test_absent_engines_are_listed_with_the_reason_and_nothing_is_run(tmp_path: Path) -> None:
    """Each engine names the variable it misses; no cell is made."""
    store = Store(tmp_path)
    absent = measure([ENGINES["vllm"], ENGINES["outlines"]], Places({}), store, Options())
    assert absent == {
        "vllm": "PHLOEM_BENCH_VLLM_PYTHON is not set",
        "outlines": "PHLOEM_BENCH_OUTLINES_PYTHON is not set",
    }
    assert store.all() == {}
    page = markdown(summarise({}, absent), "A machine.", "")
    assert "absent: PHLOEM_BENCH_VLLM_PYTHON is not set" in page


def _cell(seconds: float, **more: object) -> dict[str, object]:
    outputs = [[("intent", "a"), ("answer", "b"), ("verdict", "c"), ("closing", "d")]]
    counts = Tally().to_json() | {"passes": {"1": 100, "500": 1}, "decoder_s": 0.9 * seconds}
    part = {"seconds": seconds, "latencies": [seconds], "outputs": outputs, **counts, **more}
    return {"asked": 1, "parts": {"first": part}, "info": {"weights": "w", "version": "v"}}


def test_summary_compares_medians_and_judges_goals() -> None:
    """Ratios come from the medians of the rounds; a goal without its numbers is not judged."""
    results = {
        Key("phloem-int4", "chain", 1, 0): _cell(1.0),
        Key("phloem-int4", "chain", 1, 1): _cell(3.0),
        Key("phloem-int4", "chain", 1, 2): _cell(1.2),
        Key("phloem-int4", "calibration", 1, 0): {"step_s": {"1": 0.01}, "prefill_per_s": 1e3},
        Key("vllm", "chain", 1, 0): _cell(4.0),
        Key("vllm", "chain", 8, 0): {"over_s": 120.0, "asked": 8},
    }
    summary = summarise(results, {})
    goals = {goal["what"]: goal for goal in summary["goals"]}
    assert goals["chain, first: phloem-int4 / vllm"]["reached"] == pytest.approx(0.3)
    assert goals["chain, first: phloem-int4 / vllm"]["met"] is False
    assert goals["chain, first: phloem-bf16 / vllm"]["met"] is None
    assert summary["floors"]["phloem-int4"]["first"]["own_share"] == pytest.approx(0.1)
    page = markdown(summary, "A machine.", "x.svg")
    assert "| phloem-int4 | 4-bit | 1.20 / 3.00 |" in page
    assert "vllm, chain: over 120 s" in page
    assert svg(summary).count("<rect") == 2


def test_report_replaces_only_what_stands_between_its_marks(tmp_path: Path) -> None:
    """Written twice, a page holds the second report once, and all of its own text."""
    page = tmp_path / "page.md"
    page.write_text("# Page\n\nBefore.\n")
    put_into(page, "one")
    page.write_text(page.read_text() + "\n## After\n")
    put_into(page, "two")
    text = page.read_text()
    assert text.startswith("# Page\n\nBefore.\n")
    assert text.count("two") == 1
    assert "one" not in text.split("benchmarks/programs.py")[1]
    assert text.rstrip().endswith("## After")
