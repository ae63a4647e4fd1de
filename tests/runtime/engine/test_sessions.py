"""Sessions: what is computed, what is kept, and what a step gives."""

import asyncio
import threading

import pytest

from phloem.errors import ConfigError, EngineError, PromptTooLong, Unsupported
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams, Special, StepResult, Text, TokenEvent

STORY = "the answer is a user and the system is in no way true because of the assistant. "


async def test_no_token_is_computed_twice(make_lab, special):
    """Over five steps with text in between, each of the session's tokens is one row.

    Guesses that fail would come on top.
    """
    lab = make_lab(drafts=False)
    session = await lab.session(STORY, special("<|im_end|>"))
    for i in range(5):
        result = await lab.say(session, Constraint("regex", "[a-z ]{30}"), max_tokens=10)
        assert result.usage.reused + result.usage.prefilled == result.usage.prompt
        assert result.miss is None
        session.append([Text(f" step {i}"), special("<|im_end|>")])
    tokens = (await session.snapshot()).tokens
    # The text after the last step was never needed, nor the last token's KV.
    needed = len(tokens) - 1 - len(lab.model.tokenizer.encode(" step 4")) - 1
    assert sorted(lab.decoder.seen) == list(enumerate(tokens[:needed]))


async def test_a_repeated_run_computes_the_last_token_of_each_step_only(make_lab, special):
    """The second session's prompt is reused but for its last token; generated KV is reused too."""
    lab = make_lab()
    for turn in range(2):
        session = await lab.session(STORY, special("<|im_end|>"), name=f"s{turn}")
        for _ in range(3):
            result = await lab.say(session, max_tokens=10)
            if turn:
                assert result.usage.prefilled == 1
            session.append([Text(" and"), special("<|im_end|>")])


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
async def test_page_size_changes_nothing(make_lab, special, page_size):
    """Texts and reuse are the same whatever the page size."""
    lab = make_lab(page_size=page_size)
    first = await lab.session(STORY, special("<|im_end|>"))
    one = await lab.say(first, max_tokens=20)
    again = await lab.say(await lab.session(STORY, special("<|im_end|>")), max_tokens=20)
    assert (again.text, again.usage.prefilled) == (one.text, 1)
    plain = make_lab(page_size=5, prefix_cache=False)
    other = await plain.say(await plain.session(STORY, special("<|im_end|>")), max_tokens=20)
    assert (other.tokens, other.usage.reused) == (one.tokens, 0)


async def test_adjacent_texts_are_tokenised_as_one(make_lab):
    """ "be" + "cause" is the token " because" whatever happened in between without a token."""
    lab = make_lab()
    session = await lab.session("yes be")
    await session.score([" no", "cause"])
    session.append([Text("cause")])
    await lab.say(session, max_tokens=1)
    split = (await session.snapshot()).tokens
    whole = lab.model.tokenizer.encode("yes because")
    assert list(split[: len(whole)]) == whole


async def test_special_spellings_in_text_stay_text(make_lab):
    """ "<|im_end|>" in a text never becomes the special token; as a Special it does."""
    lab = make_lab()
    end = lab.model.tokenizer.special_id("<|im_end|>")
    session = await lab.session("a<|im_end|>b")
    await lab.say(session, max_tokens=1)
    assert end not in (await session.snapshot()).tokens
    session.append([Special("<|im_end|>"), Text("c")])
    assert end in (await session.snapshot()).tokens


async def test_unknown_special_is_refused_and_changes_nothing(make_lab):
    """A special token the tokenizer lacks raises at once, and nothing was appended."""
    lab = make_lab()
    session = await lab.session("a")
    with pytest.raises(Unsupported, match="<nope>"):
        session.append([Text("b"), Special("<nope>")])
    assert (await session.snapshot()).pending == (Text("a"),)


async def test_events_join_to_the_result(make_lab):
    """Texts and tokens of the events are those of the result, which comes last."""
    lab = make_lab()
    session = await lab.session(STORY)
    for temperature in (0, 1.5):
        *events, result = await lab.events(session, max_tokens=30, temperature=temperature, seed=1)
        assert isinstance(result, StepResult)
        assert all(isinstance(event, TokenEvent) for event in events)
        assert "".join(event.text for event in events) == result.text
        assert [t for event in events for t in event.tokens] == list(result.tokens)
        assert lab.model.tokenizer.decode(result.tokens).strip(" ") == result.text.strip(" ")


async def test_a_step_that_waits_is_told_so_first(make_lab):
    """A step that must wait for its turn yields an event without text and tokens as soon as the
    engine has accepted it; one that begins at once yields none."""
    lab = make_lab(max_running=1)
    both_asked = threading.Event()
    lab.decoder.before = lambda _: both_asked.wait()
    first, second = await lab.session(STORY), await lab.session("the", name="t")
    going = asyncio.ensure_future(lab.events(first, max_tokens=5))
    waiting = asyncio.ensure_future(lab.events(second, max_tokens=5))
    await asyncio.sleep(0)
    both_asked.set()
    *events, _ = await going
    assert [event for event in events if event.empty] == []
    *events, _ = await waiting
    assert [event for event in events if event.empty] == events[:1] == [TokenEvent("")]


async def test_an_empty_session_generates(make_lab):
    """A session with no text at all starts from the model's own first token, also in a fork."""
    lab = make_lab()
    session = await lab.backend.open("empty")
    forks = await session.fork(2)
    texts = [(await lab.say(s)).text for s in (session, *forks)]
    assert len(set(texts)) == 1
    assert (await (await lab.backend.open("empty")).score(["a", "b"])).usage.prompt == 1


async def test_max_tokens_zero_computes_the_prompt_only(make_lab):
    """A step of no tokens gives an empty text, and its prompt is reused afterwards."""
    lab = make_lab()
    session = await lab.session(STORY)
    result = await lab.say(session, max_tokens=0)
    assert (result.text, result.tokens, result.finish_reason) == ("", (), "length")
    assert (await lab.say(session)).usage.prefilled == 1


async def test_forks_share_the_prefix_and_copy_one_page(make_lab, special):
    """Four forks compute their own text only, and own at most one page of the shared part."""
    lab = make_lab()
    session = await lab.session(STORY * 3, special("<|im_end|>"))
    await lab.say(session, max_tokens=3)
    before, used = lab.decoder.rows, lab.state(lambda s: s.pool.free)
    forks = await session.fork(4)
    assert [fork.id for fork in forks] == ["s.0", "s.1", "s.2", "s.3"]
    for name, fork in zip("abcd", forks, strict=True):
        fork.append([Text(f"{name} fork"), special("<|im_end|>")])
    await asyncio.gather(*(lab.say(fork, max_tokens=1) for fork in forks))
    own = len(lab.model.tokenizer.encode("a fork")) + 1
    assert lab.decoder.rows - before == 4 * own + 1
    assert used - lab.state(lambda s: s.pool.free) <= 4
    assert [fork.id for fork in await session.fork(1)] == ["s.4"]
    assert await session.fork(0) == []


async def test_snapshot_and_restore(make_lab, special):
    """A restored session goes on exactly as the original would, and reuses its KV."""
    lab = make_lab()
    session = await lab.session(STORY, special("<|im_end|>"), branch="b")
    await lab.say(session)
    session.append([Text(" the answer is")])
    snapshot = await session.snapshot()
    twin = await lab.backend.restore(snapshot, "twin")
    params = {"max_tokens": 12, "temperature": 1.0, "seed": 5}
    one, two = await lab.say(session, **params), await lab.say(twin, **params)
    assert one.tokens == two.tokens
    assert two.usage.prefilled <= 2
    other = make_lab(prefix_cache=False)
    far = await other.backend.restore(snapshot, "far")
    assert (await other.say(far, **params)).tokens == one.tokens


async def test_restore_refuses_another_model(make_lab):
    """A snapshot of another model is refused."""
    lab = make_lab()
    snapshot = await (await lab.session("a")).snapshot()
    wrong = type(snapshot)(fingerprint="other", tokens=snapshot.tokens)
    with pytest.raises(Unsupported, match="another model"):
        await lab.backend.restore(wrong, "x")


async def test_namespaces_share_nothing(make_lab):
    """The same prompt in another namespace is computed in full."""
    lab = make_lab()
    for namespace in ("a", "b"):
        result = await lab.say(await lab.session(STORY, namespace=namespace))
        assert result.usage.reused == 0


@pytest.mark.parametrize(("tokens", "ok"), [(512, False), (511, True)])
async def test_the_limit_counts_prompt_and_requested_tokens(make_lab, tokens, ok):
    """511 tokens and one more fit a context of 512; 512 and one more are refused at once."""
    lab = make_lab(kv_tokens=512)
    session = await lab.session("z" * tokens)
    if ok:
        assert (await lab.say(session, max_tokens=1)).usage.generated == 1
        return
    with pytest.raises(PromptTooLong, match=r"512 tokens and 1 more .* limit is 512") as caught:
        await lab.say(session, max_tokens=1)
    assert caught.value.details == {"prompt_tokens": 512, "requested_tokens": 1, "limit": 512}
    assert lab.decoder.passes == []
    assert (await session.snapshot()).pending == (Text("z" * tokens),)


async def test_seeds_reproduce_alone_and_batched(make_lab):
    """The same seed gives the same tokens alone, among others, and in another branch others."""
    lab = make_lab()
    params = {"max_tokens": 20, "temperature": 1.0, "seed": 42}

    async def one(name, **opened):
        return await lab.say(await lab.session(STORY, name=name, **opened), **params)

    alone = await one("alone")
    together = await asyncio.gather(one("x"), *(noise(lab, i) for i in range(6)), one("y"))
    assert together[0].tokens == together[-1].tokens == alone.tokens
    assert alone.seed == 42
    assert (await one("z", branch="0")).tokens != alone.tokens


async def test_an_unseeded_step_reports_the_seed_that_repeats_it(make_lab):
    """Without a seed the steps differ, and each can be repeated by the seed it reports."""
    lab = make_lab()
    params = {"max_tokens": 20, "temperature": 1.0}
    results = [await lab.say(await lab.session(STORY), **params) for _ in range(3)]
    assert len({result.tokens for result in results}) == 3
    again = await lab.say(await lab.session(STORY), **params, seed=results[1].seed)
    assert again.tokens == results[1].tokens


async def test_a_session_does_one_step_at_a_time(make_lab):
    """A second step while one runs is refused; the first is not disturbed."""
    lab = make_lab()
    session = await lab.session(STORY)
    first = session.generate(SamplingParams(max_tokens=20, temperature=0))
    await anext(first)
    with pytest.raises(EngineError, match="in a step already"):
        await lab.say(session)
    rest = [item async for item in first]
    assert rest[-1].usage.generated == 20


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"stop": ("",)}, "stop"),
        ({"stop_regex": ("(",)}, "stop_regex"),
        ({"logprobs": -1}, "logprobs"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ],
)
async def test_bad_parameters_are_named(make_lab, params, name):
    """A parameter out of its range raises ConfigError that names it; the session stays usable."""
    lab = make_lab()
    session = await lab.session("a")
    with pytest.raises(ConfigError, match=name) as caught:
        await lab.say(session, **params)
    assert caught.value.details["param"] == name
    await lab.say(session)


async def test_a_miss_names_the_line_that_put_the_token_there(make_lab):
    """After an eviction the step says which known token it had to compute again, and whose."""
    lab = make_lab()
    session = await lab.backend.open("s")
    session.append([Text("the first", origin="a.py:1"), Text(" and more", origin="a.py:2")])
    await lab.say(session)
    await lab.backend.flush_cache()
    result = await lab.say(session)
    assert result.miss is not None
    assert (result.miss.position, result.miss.origin) == (0, "a.py:1")


async def noise(lab, i):
    """Somebody else's step."""
    session = await lab.session(STORY[i:], name=f"noise{i}")
    return await lab.say(session, max_tokens=15, temperature=1.3)


async def test_the_computed_part_of_a_prompt_is_told_in_characters(make_lab, special):
    """The first step computes all of its text; the next what was added and the last token's."""
    lab = make_lab()
    session = await lab.session(STORY, special("<|im_end|>"))
    first = await lab.say(session, max_tokens=4)
    assert first.computed_chars == len(STORY + "<|im_end|>")
    session.append([Text(" and"), special("<|im_end|>")])
    second = await lab.say(session, max_tokens=4)
    known = await session.snapshot()
    assert second.miss is None
    prompt = second.usage.prompt
    assert second.computed_chars == len(
        lab.model.tokenizer.spell(known.tokens[second.usage.reused : prompt])
    )
