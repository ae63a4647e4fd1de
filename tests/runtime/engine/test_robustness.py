"""What one step gets wrong, or meets, is its own affair: the engine and the others go on."""

import asyncio
import threading
import time

import pytest

from phloem.errors import Cancelled, ConfigError, EngineError
from phloem.programs.protocol import SamplingParams
from phloem.runtime.engine.engine import Engine
from phloem.runtime.place import Place

NAN = float("nan")


async def beside(lab, step):
    """A long step's result, and what came of `step`, which ran beside it."""
    other = await lab.session("because of", name="other")
    going = asyncio.ensure_future(lab.say(other, max_tokens=40, ignore_eos=True))
    await asyncio.sleep(0)
    (failed,) = await asyncio.gather(step, return_exceptions=True)
    return (await going).tokens, failed


@pytest.mark.parametrize(
    ("opened", "name"),
    [
        ({"priority": "high"}, "priority"),
        ({"priority": None}, "priority"),
        ({"priority": 0.5}, "priority"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": NAN}, "deadline"),
        ({"namespace": ["tenant"]}, "namespace"),
        ({"branch": 3}, "branch"),
    ],
)
async def test_what_a_session_is_opened_with_is_checked(make_lab, opened, name):
    """An argument of a wrong kind raises ConfigError that names it, before there is a job."""
    lab = make_lab()
    with pytest.raises(ConfigError, match=name) as caught:
        await lab.session("a", **opened)
    assert caught.value.details["param"] == name


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"min_tokens": None},
        {"temperature": "hot"},
        {"temperature": NAN},
        {"top_k": 2.5},
        {"top_p": None},
        {"seed": "x"},
        {"logprobs": 2.5},
        {"logprobs": True},
        {"frequency_penalty": "1"},
        {"stop": "ab"},
        {"stop": (b"a",)},
        {"stop": ("\ud800",)},
        {"stop_regex": (3,)},
        {"stop_token_ids": ("a",)},
    ],
)
async def test_parameters_of_a_wrong_kind_are_named(make_lab, params):
    """They raise ConfigError at once: in a pass they would end the steps that share it."""
    lab = make_lab()
    session = await lab.session("a")
    with pytest.raises(ConfigError) as caught:
        await lab.say(session, **params)
    assert caught.value.details["param"] in params
    await lab.say(session)


@pytest.mark.parametrize("hint", [("soon",), (-1,), (NAN,), (1.5,), (1, None), (1, ["ask"])])
async def test_a_wrong_hint_is_refused(make_lab, hint):
    """It raises ConfigError, and the session goes on."""
    lab = make_lab()
    session = await lab.session("a")
    with pytest.raises(ConfigError, match="hint"):
        session.hint(*hint)
    await lab.say(session)
    session.hint(3, "ask")
    await lab.say(session)


async def test_a_job_that_can_not_be_queued_fails_alone(make_lab, monkeypatch):
    """Whatever goes wrong while a job is queued ends that job; the thread and the others go on."""
    lab = make_lab()
    alone = (await lab.say(await lab.session("because of"), max_tokens=40, ignore_eos=True)).tokens
    bad = await lab.session("a", name="bad")
    monkeypatch.setattr(Place, "__post_init__", lambda self: None)
    for place in (Place("bad", priority="high"), Place("bad", namespace=["tenant"])):
        bad._place = place
        others, failed = await beside(lab, lab.say(bad))
        assert isinstance(failed, EngineError)
        assert "TypeError" in str(failed)
        assert others == alone
        lab.at_rest()


async def test_a_command_that_fails_does_not_end_the_thread(make_lab, caplog):
    """It is logged, and the engine does what comes next."""
    lab = make_lab()
    await lab.backend.start()
    lab.engine.expect(None, 1)
    await lab.say(await lab.session("a"))
    assert "a command to the engine failed" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_nobody_waits_for_a_thread_that_ended(tiny, monkeypatch):
    """If the thread ends all the same, running and queued steps end, and later ones do at once."""
    from phloem.runtime.embedded import EmbeddedBackend

    def broken(state):
        if len(state.running) + len(state.waiting) == 2:
            raise RuntimeError("a broken scheduler")

    monkeypatch.setattr("phloem.runtime.engine.engine.step", broken)
    backend = EmbeddedBackend(tiny, kv_tokens=256)
    assert isinstance(backend.engine, Engine)

    async def step():
        session = await backend.open("s")
        return [item async for item in session.generate(SamplingParams())]

    both = await asyncio.gather(step(), step(), return_exceptions=True)
    assert [type(error) for error in both] == [Cancelled, Cancelled]
    with pytest.raises(Cancelled):
        await step()
    with pytest.raises(Cancelled):
        backend.engine.audit()
    await backend.aclose()


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}])
async def test_a_row_without_numbers_fails_alone(make_lab, params):
    """Logits that are no numbers are never drawn from; the rows beside them are drawn as ever."""
    lab = make_lab(drafts=False)
    asked = {"max_tokens": 20, "seed": 1, "ignore_eos": True, **params}
    words = ("a b", "the user", "because")
    alone = [(await lab.say(await lab.session(word), **asked)).tokens for word in words]
    whole = lab.decoder._decoder
    spoilt = []

    class Spoilt:
        def __getattr__(self, name):
            return getattr(whole, name)

        def forward(self, batch, kv):
            logits = whole.forward(batch, kv)
            if len(batch.tokens) == len(logits) == len(words) and not spoilt:
                spoilt.append(batch)
                logits[1, 7] = NAN
            return logits

    lab.decoder._decoder = Spoilt()
    sessions = [await lab.session(word) for word in words]
    gate = threading.Event()
    lab.engine.call(lambda state: gate.wait(60))
    steps = [asyncio.ensure_future(lab.say(session, **asked)) for session in sessions]
    await asyncio.sleep(0)  # now all are queued
    gate.set()
    found = await asyncio.gather(*steps, return_exceptions=True)
    (failed,) = [one for one in found if isinstance(one, BaseException)]
    assert isinstance(failed, EngineError)
    assert "NaN" in str(failed)
    for one, expected in zip(found, alone, strict=True):
        assert one is failed or one.tokens == expected


async def test_choices_are_not_scored_by_what_is_no_number(make_lab):
    """Scores that would be NaN are an error."""
    lab = make_lab()
    whole = lab.decoder._decoder
    lab.decoder._decoder = type("Spoilt", (), {
        "__getattr__": lambda self, name: getattr(whole, name),
        "forward": lambda self, batch, kv: whole.forward(batch, kv).fill_(NAN),
    })()  # fmt: skip
    with pytest.raises(EngineError, match="NaN"):
        await (await lab.session("a")).score(["yes", " no"])


def test_a_reader_whose_loop_closed_before_it_was_read_holds_no_place(tiny):
    """Also where messages were on their way when the loop was closed."""
    from phloem.runtime.embedded import EmbeddedBackend

    backend = EmbeddedBackend(tiny, kv_tokens=4096)
    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(backend.open("s"))
    stream = session.generate(SamplingParams(max_tokens=4000, ignore_eos=True))
    loop.run_until_complete(anext(stream))
    passes = backend.engine.stats().passes
    while backend.engine.stats().passes < passes + 2:  # what these say wakes the loop, unread
        time.sleep(0.001)
    loop.close()
    state = backend.engine._state
    until = time.monotonic() + 60
    while state.running and time.monotonic() < until:
        time.sleep(0.001)
    assert not state.running
    assert state.stats.cancelled == 1
    backend._close()
    with pytest.raises(StopIteration):  # end the generator, for a quiet interpreter
        stream.aclose().send(None)


async def test_a_namespace_that_nobody_uses_is_forgotten(make_lab):
    """Once the pages of a tenant are gone nothing is left of it, nor of one that had none."""
    lab = make_lab(kv_tokens=256, max_running=1)
    for i in range(20):
        await lab.say(await lab.session("the user is", namespace=f"tenant {i}"))
    names, pages = lab.state(lambda s: (set(s.cache.roots()), {ns for ns, _ in s.cache.nodes()}))
    assert names == pages
    assert 0 < len(names) < 20
    session = await lab.session("the user", namespace="late", deadline=0.0)
    await asyncio.gather(lab.say(session), return_exceptions=True)
    await lab.backend.flush_cache()
    assert lab.state(lambda s: s.cache.roots()) == {}


async def test_a_namespace_is_one_while_it_is_used(make_lab):
    """Its pages may all go while a step of it runs: what that computed is found all the same."""
    lab = make_lab(kv_tokens=256)
    first = await lab.session("the user is", namespace="tenant")
    going = first.generate(SamplingParams(max_tokens=30, temperature=0, ignore_eos=True))
    await anext(going)
    lab.state(lambda s: s.cache.flush())
    lab.engine.audit()
    async for _ in going:
        pass
    second = await lab.session("the user is", namespace="tenant")
    assert (await lab.say(second)).usage.reused > 0
