"""The compiler: one compile each, off-thread, bounded, and hostile input refused in time."""

import gc
import json
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from phloem.errors import ConfigError, ConstraintError
from phloem.grammar import compiler as compiler_module
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.lowering import lower
from phloem.grammar.spec import Constraint


@pytest.fixture
def fresh(compiler):
    """A compiler of its own for the tiny tokenizer."""
    return GrammarCompiler.for_tokenizer(compiler.tokenizer)


def test_one_compile_however_many_ask(fresh):
    """Twenty threads that ask for one constraint at once cause one compile."""
    constraint = Constraint("regex", "[a-z]{3,40}x")
    gate = threading.Barrier(20)
    found = []

    def ask():
        gate.wait()
        found.append(fresh.matcher(constraint))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert fresh.compiled == 1
    fresh.compile(Constraint("regex", "[a-z]{3,40}x", finish="force"))
    assert fresh.compiled == 1


def test_the_cache_is_bounded_and_forgets_the_oldest(compiler):
    """Above its size the cache drops what was used longest ago, and compiles it anew."""
    small = GrammarCompiler.for_tokenizer(compiler.tokenizer, cache_size=400)
    rules = [Constraint("regex", f"a{{{n}}}" + "b" * 60) for n in range(1, 12)]
    for rule in rules:
        small.compile(rule)
    assert small.compiled == len(rules)
    small.compile(rules[-1])
    assert small.compiled == len(rules)
    small.compile(rules[0])
    assert small.compiled == len(rules) + 1


def test_errors_are_cached_and_raised_anew(fresh):
    """A constraint that can't be enforced is examined once; each caller gets its own error."""
    bad = Constraint("regex", "a[b")
    caught = []
    for _ in range(3):
        with pytest.raises(ConstraintError, match="class") as error:
            fresh.compile(bad)
        caught.append(error.value)
    assert fresh.compiled == 1
    assert len({id(error) for error in caught}) == 3
    assert all(error.details["position"] == 1 for error in caught)


def test_a_compile_out_of_time_is_refused_and_not_kept(fresh, monkeypatch):
    """Who waits too long gets an error, others go on, and a later try compiles again."""
    release = threading.Event()
    lower = compiler_module.lower
    slow = Constraint("regex", "slow")

    def stuck(constraint):
        if constraint.source == "slow":
            release.wait(30)
        return lower(constraint)

    monkeypatch.setattr(compiler_module, "lower", stuck)
    with pytest.raises(ConstraintError, match="longer than"):
        fresh.compile(slow, timeout=0.05)
    fresh.compile(Constraint("regex", "fast"), timeout=30)
    release.set()
    fresh.compile(slow, timeout=30)
    assert fresh.compiled == 3


def test_a_crowd_of_constraints_refuses_none(fresh, monkeypatch):
    """The time limit counts from a compile's own turn, not from when it was asked for."""
    lower = compiler_module.lower

    def slow(constraint):
        time.sleep(0.1)
        return lower(constraint)

    monkeypatch.setattr(compiler_module, "lower", slow)
    rules = [Constraint("regex", "a" * (n + 1)) for n in range(20)]
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda rule: fresh.compile(rule, timeout=1.5), rules))
    assert fresh.compiled == 20


def _nested(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "source",
    [
        {"regex": "a{1000000}"},
        {"regex": "((a{1,100}){1,100}){1,100}"},
        {"regex": "(" * 5000},
        {"regex": "|".join("a" * size for size in range(900))},
        {"schema": {"properties": {f"p{n}": {"title": "x" * 90} for n in range(20_000)}}},
        {"schema": _nested(2000)},
        {"schema": {"allOf": [
            {"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(30)
        ]}},
        {"schema": {"patternProperties": {f"^a{{0,{n}}}b": {"const": n} for n in range(40)}}},
    ],
)  # fmt: skip
def test_hostile_input_is_refused(build, source):
    """What would take minutes or gigabytes is a `ConstraintError`."""
    with pytest.raises(ConstraintError):
        build(**source)


@pytest.mark.parametrize(
    "source",
    [
        {"schema": {"enum": [f"value {n}" for n in range(20_000)]}},
        {"schema": {"properties": {f"k{n}": {"type": "integer"} for n in range(60)}}},
        {"schema": {"type": "array", "maxItems": 10**9}},
        {"schema": {"type": "string", "maxLength": 10**9}},
        {"regex": "[ab]*a[ab]{13}"},
        {
            "schema": {
                "oneOf": [{"$ref": f"#/$defs/b{n}"} for n in range(80)],
                "$defs": {
                    f"b{n}": {
                        "type": "object",
                        "required": ["kind", "v"],
                        "properties": {"kind": {"const": f"k{n}"}, "v": {"type": "integer"}},
                    }
                    for n in range(80)
                },
            }
        },
    ],
)
def test_large_but_harmless_input_compiles(compiler, build, source):
    """Size alone is no reason for a refusal."""
    matcher = compiler.matcher(build(**source))
    assert not matcher.is_finished()


def test_a_run_that_compiles_goes_on_beside_a_hostile_one(fresh):
    """While one thread's hostile schema is worked on, another's masks are computed."""
    branches = [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(40)]
    hostile = Constraint("json_schema", json.dumps({"allOf": branches}))
    refused = []

    def ask():
        with pytest.raises(ConstraintError) as error:
            fresh.compile(hostile)
        refused.append(error.value)

    thread = threading.Thread(target=ask)
    matcher = fresh.matcher(Constraint("regex", "a+"))
    thread.start()
    steps = 0
    token = fresh.tokenizer.ll.tokenize_str("a")[0]
    while thread.is_alive() or steps < 10:
        matcher.accept(token)
        steps += 1
        time.sleep(0.001)
    thread.join()
    assert steps >= 10
    assert refused


def test_a_tokenizer_that_is_none_is_refused():
    """Text that is no tokenizer, and a tokenizer without an end, are configuration errors."""
    with pytest.raises(ConfigError):
        GrammarCompiler("{}", 10, [1])
    with pytest.raises(ConfigError, match="end-of-sequence"):
        GrammarCompiler("{}", 10, [])


def test_what_breaks_a_compile_reaches_who_asked(compiler, monkeypatch):
    """An unforeseen error is raised at once, and the next compile is served."""

    def broken(constraint):
        raise KeyError("a fault of ours")

    monkeypatch.setattr("phloem.grammar.compiler.lower", broken)
    with pytest.raises(KeyError, match="a fault of ours"):
        compiler.compile(Constraint("regex", "never compiled before: x"))
    monkeypatch.undo()
    compiler.compile(Constraint("regex", "never compiled before: y"))


def test_a_compiler_that_nobody_holds_ends_with_its_thread(compiler):
    """A dropped compiler leaves no cache and no thread behind, also after a compile that failed."""
    before = set(threading.enumerate())
    dropped = GrammarCompiler.for_tokenizer(compiler.tokenizer)
    dropped.compile(Constraint("regex", "a+"))
    with pytest.raises(ConstraintError):
        dropped.compile(Constraint("regex", "a["))
    (thread,) = [t for t in set(threading.enumerate()) - before if t.name == "phloem-grammar"]
    gone = weakref.ref(dropped)
    del dropped
    gc.collect()
    thread.join(60)
    assert gone() is None
    assert not thread.is_alive()


def test_what_a_step_asks_for_again_is_checked_once(build, monkeypatch) -> None:
    """A program asks for the same constraint at every step: the second time costs no look at it;
    one that can't be enforced is refused each time."""
    lowered: list[Constraint] = []

    def counted(constraint: Constraint) -> str:
        lowered.append(constraint)
        return lower(constraint)

    monkeypatch.setattr("phloem.grammar.analyser.lower", counted)
    made = {build(regex="once in a blue moon [0-9]{3}") for _ in range(3)}
    assert lowered == list(made)
    for _ in range(2):
        with pytest.raises(ConstraintError):
            build(regex="never(?!)")
