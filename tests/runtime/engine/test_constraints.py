"""Constrained steps: masks, dictated tokens, the way out, and the healed border."""

import asyncio
import json
import re

import pytest

from phloem.errors import ConstraintError
from phloem.grammar.matcher import EngineMatcher
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import Special, Text

STORY = "the answer is a user and the system is in no way true because of the assistant."
RULE = Constraint("regex", r'\{"[a-z]{3}":true,"answer":(yes|no|null)\} because [a-z ]{5,20}\.')


def whole(rule, text):
    return re.fullmatch(rule.source, text) is not None


@pytest.mark.parametrize("temperature", [0, 1.0])
async def test_jumps_change_no_token(make_lab, temperature):
    """With dictated tokens taken in one chunk or one by one, the tokens are the same."""
    on, off = make_lab(), make_lab(jump_forward=False)
    for seed in range(8):
        steps = [
            await lab.say(
                await lab.session(STORY + "ab"[seed % 2]),
                RULE,
                max_tokens=80,
                seed=seed,
                temperature=temperature,
            )
            for lab in (on, off)
        ]
        assert steps[0].tokens == steps[1].tokens
        assert steps[0].usage.forced == steps[1].usage.forced > 10
        assert whole(RULE, steps[0].text)
    assert len(on.decoder.passes) < 0.7 * len(off.decoder.passes)


async def test_dictated_tokens_enter_in_one_pass_with_the_prompt(make_lab):
    """What the grammar dictates at the start is computed together with the prompt."""
    lab = make_lab()
    rule = Constraint("regex", "because of the user[ab]")
    session = await lab.session(STORY, Special("<|im_end|>"))
    result = await lab.say(session, rule, max_tokens=40)
    forced = lab.model.tokenizer.encode("because of the user")
    assert result.tokens[:-1] == tuple(forced)
    assert result.usage.forced == len(forced)
    assert lab.decoder.passes == [result.usage.prompt + len(forced)]


async def test_a_stop_in_what_is_dictated_holds_while_the_prompt_comes_in_chunks(make_lab):
    """Dictated text stands before the prompt is computed: nothing behind a stop in it is shown."""
    lab = make_lab(max_running=2, max_rows=8)
    session = await lab.session(STORY, Special("<|im_end|>"))
    *events, result = await lab.events(
        session, Constraint("regex", "because of the user[ab]"), max_tokens=40, stop=("f the",)
    )
    assert (result.text, result.stop, result.finish_reason) == ("because o", "f the", "stop")
    assert "".join(event.text for event in events) == result.text
    assert len(lab.decoder.passes) > 2


async def test_a_constant_costs_no_draw(make_lab):
    """A text that is dictated in full needs the prompt's pass only, and its KV is kept."""
    lab = make_lab()
    session = await lab.session(STORY, Special("<|im_end|>"))
    result = await lab.say(session, Constraint("choices", '["because of the user"]'), max_tokens=40)
    assert (result.text, result.finish_reason) == ("because of the user", "stop")
    assert len(lab.decoder.passes) == 1
    session.append([Special("<|im_end|>")])
    assert (await lab.say(session)).usage.prefilled == 1
    passes = len(lab.decoder.passes)
    again = await lab.session(STORY, Special("<|im_end|>"), name="again")
    result = await lab.say(again, Constraint("choices", '["because of the user"]'), max_tokens=40)
    assert (result.text, result.usage.prefilled) == ("because of the user", 0)
    assert len(lab.decoder.passes) == passes


async def test_forced_tokens_with_logprobs(make_lab):
    """With log-probabilities asked for, dictated tokens have theirs too, and are the same."""
    lab = make_lab()
    plain = await lab.say(await lab.session(STORY), RULE, max_tokens=80)
    told = await lab.say(await lab.session(STORY), RULE, max_tokens=80, logprobs=2)
    assert told.tokens == plain.tokens
    assert [t.token for t in told.logprobs] == list(told.tokens)
    assert all(len(t.top) == 2 and t.top[0][2] >= t.logprob - 1e-6 for t in told.logprobs)


async def test_a_stop_text_inside_of_a_forced_chunk(make_lab):
    """A stop text ends the step in the middle of what the grammar dictates."""
    lab = make_lab()
    rule = Constraint("regex", "because of the user and the assistant [ab]")
    session = await lab.session(STORY, Special("<|im_end|>"))
    result = await lab.say(session, rule, max_tokens=40, stop=("user a", "zzz"))
    assert (result.text, result.stop) == ("because of the ", "user a")
    tokens = (await session.snapshot()).tokens
    assert lab.model.tokenizer.decode(tokens[-len(result.tokens) :]) == "because of the "


async def test_max_tokens_cuts_and_says_so(make_lab):
    """A structure that is cut is a beginning of one, with the reason "length"."""
    lab = make_lab()
    result = await lab.say(await lab.session(STORY), RULE, max_tokens=6)
    assert result.finish_reason == "length"
    assert result.usage.generated == 6
    assert result.text.startswith('{"')


@pytest.mark.parametrize("limit", range(14, 40, 3))
async def test_force_closes_the_text_in_time(make_lab, limit):
    """With finish="force" the text is complete within max_tokens, whatever max_tokens is."""
    lab = make_lab()
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    rule = Constraint("json_schema", json.dumps(schema), finish="force")
    for seed in range(4):
        session = await lab.session(STORY)
        result = await lab.say(session, rule, max_tokens=limit, temperature=1.5, seed=seed)
        assert set(json.loads(result.text)) == {"a", "b"}
        assert result.usage.generated <= limit
        assert result.finish_reason in ("stop", "forced")


async def test_a_way_out_that_is_not_found_is_sought_seldom(make_lab, monkeypatch):
    """A failing search is long, and others wait for it: not each token has one."""
    lab = make_lab()
    calls = []

    def closing(matcher, limit):
        calls.append(limit)

    monkeypatch.setattr(EngineMatcher, "closing", closing)
    rule = Constraint("regex", "[ab]{150}", finish="force")
    result = await lab.say(await lab.session(STORY), rule, max_tokens=100, temperature=2.0)
    assert result.finish_reason == "length"
    assert 5 < len(calls) < 40
    assert calls[-1] < 5


@pytest.mark.parametrize("jump", [True, False])
async def test_a_stop_token_inside_of_a_forced_chunk(make_lab, jump):
    """A stop token ends the step also where the grammar dictates it, from min_tokens on."""
    lab = make_lab(jump_forward=jump)
    rule = Constraint("regex", "because of the user and the assistant")
    (stop,) = lab.model.tokenizer.encode(" and")
    for least, text in ((0, "because of the user"), (12, rule.source)):
        session = await lab.session(STORY, Special("<|im_end|>"))
        params = {"max_tokens": 40, "stop_token_ids": (stop,), "min_tokens": least}
        result = await lab.say(session, rule, **params)
        assert (result.text, result.finish_reason) == (text, "stop")


async def test_a_whole_text_at_the_last_token_is_no_cut(make_lab):
    """With finish="force" a text that is whole when the tokens run out is not called cut."""
    lab = make_lab()
    for finish, reason in (("force", "forced"), ("free", "length")):
        session = await lab.session(STORY, Special("<|im_end|>"))
        rule = Constraint("regex", "[ab]{1,9}", finish=finish)
        result = await lab.say(session, rule, max_tokens=3, ignore_eos=True)
        assert (len(result.text), result.finish_reason) == (3, reason)


async def test_masks_never_leak_between_requests(make_lab):
    """Constrained steps match and free ones give what they give alone, twenty rounds together."""
    lab = make_lab()
    rules = [
        Constraint("regex", "[0-9]{6}"),
        Constraint("regex", "(red|blue)"),
        None,
        Constraint("json_schema", '{"const": {"ok": true}}'),
    ]
    alone = await lab.say(await lab.session(STORY), max_tokens=24)
    for _ in range(20):
        await lab.backend.flush_cache()
        sessions = [await lab.session(STORY, name=str(i)) for i in range(4)]
        steps = (lab.say(s, rule, max_tokens=24) for s, rule in zip(sessions, rules, strict=True))
        number, colour, free, constant = await asyncio.gather(*steps)
        assert re.fullmatch("[0-9]{6}", number.text)
        assert colour.text in ("red", "blue")
        assert free.tokens == alone.tokens
        assert constant.text == '{"ok":true}'


async def test_constraint_ends_when_nothing_can_follow(make_lab):
    """A step ends by itself when the text is complete, without an end-of-sequence token."""
    lab = make_lab()
    session = await lab.session(STORY, Special("<|im_end|>"))
    result = await lab.say(session, Constraint("regex", "[ab]{3}"), max_tokens=20)
    assert (len(result.text), result.finish_reason) == (3, "stop")
    ids = (await session.snapshot()).tokens
    assert not set(ids[-3:]) & lab.model.eos_ids


async def test_stopping_is_the_models_choice_where_the_text_may_end(make_lab):
    """In an accepting state some draws end the text and some go on."""
    lab = make_lab()
    lengths = set()
    for seed in range(30):
        session = await lab.session("a" * 16, Special("<|im_end|>"))
        rule = Constraint("regex", "a*")
        result = await lab.say(session, rule, max_tokens=12, temperature=3.0, seed=seed)
        assert set(result.text) <= {"a"}
        lengths.add(len(result.text))
    assert len(lengths) > 2


async def test_ignore_eos_and_min_tokens(make_lab):
    """min_tokens bars the end until then; ignore_eos bars it for good, but a full text ends."""
    lab = make_lab()

    async def length(**params):
        session = await lab.session("a" * 16, Special("<|im_end|>"))
        rule = Constraint("regex", "a{0,9}")
        return len((await lab.say(session, rule, max_tokens=12, **params)).tokens)

    for seed in range(10):
        assert await length(min_tokens=5, temperature=5.0, seed=seed) >= 5
        assert await length(ignore_eos=True, temperature=5.0, seed=seed) == 9


async def test_a_bad_constraint_harms_nobody(make_lab):
    """A pattern that does not parse raises ConstraintError; a running step goes on unchanged."""
    lab = make_lab()
    alone = await lab.say(await lab.session(STORY), max_tokens=60)
    running = asyncio.create_task(lab.say(await lab.session(STORY, name="r"), max_tokens=60))
    for pattern in ("a[b", "(ab", "*a", "a{3,1}"):
        with pytest.raises(ConstraintError):
            await lab.say(await lab.session("a"), Constraint("regex", pattern))
    assert (await running).tokens == alone.tokens


# The healed border


def spell(tokenizer, text):
    return tokenizer.decode(tokenizer.encode(text))


async def test_healing_gives_the_tokens_of_the_joined_text(make_lab):
    """After "... be" the text "cause" comes as the tokenizer writes it: " because", one token."""
    lab = make_lab()
    session = await lab.session("the user be")
    result = await lab.say(session, Constraint("regex", "cause"), max_tokens=5)
    assert result.text == "cause"
    joined = lab.model.tokenizer.encode("the user because")
    border = lab.model.tokenizer.encode("the user be")
    assert len(joined) < len(border) + len(lab.model.tokenizer.encode("cause"))
    tokens = (await session.snapshot()).tokens
    assert lab.model.tokenizer.decode(tokens) == "the user because"


async def test_no_healing_where_it_is_not_allowed(make_lab):
    """After a special token, a text with heal=False or generated tokens the border stays."""
    lab = make_lab()
    for border in ([Text("the be", heal=False)], [Text("the be"), Special("<|im_end|>")]):
        session = await lab.session(*border)
        prompt = len(lab.model.tokenizer.encode("the be")) + len(border) - 1
        await lab.say(session, Constraint("regex", "cause"), max_tokens=9)
        tokens = (await session.snapshot()).tokens
        assert lab.model.tokenizer.decode(tokens[:prompt]) == "the be"


@pytest.mark.parametrize("seed", range(6))
async def test_healing_keeps_the_text_and_the_language(make_lab, seed):
    """Whatever is drawn at the border: prompt + result is the session's text, and it matches."""
    lab = make_lab()
    rule = Constraint("regex", "[a-z ]{0,6}(user|yes|false)")
    for prompt in ("the answer i", "is n", 'say {"', "a b", "the tru"):
        session = await lab.session(prompt)
        params = {"max_tokens": 30, "temperature": 2.0, "seed": seed}
        result = await lab.say(session, rule, **params)
        assert result.finish_reason == "length" or whole(rule, result.text)
        text = lab.model.tokenizer.decode((await session.snapshot()).tokens)
        assert text == prompt + result.text


async def test_a_border_without_alternatives_costs_nothing(make_lab):
    """Where no other token begins with the border's bytes, one row of the prompt is computed."""
    lab = make_lab()
    for _ in range(2):
        result = await lab.say(await lab.session("the z!"))
    assert result.usage.prefilled == 1


async def test_healed_draws_are_the_same_with_cache_on_and_off(make_lab):
    """A healed step gives the same tokens with and without a prefix cache, in one pass more."""
    on, off = make_lab(), make_lab(prefix_cache=False, page_size=3)
    for prompt in ("the answer i", "is n", 'say {"', "a "):
        for seed in range(3):
            steps = [
                await lab.say(await lab.session(prompt), max_tokens=6, temperature=1, seed=seed)
                for lab in (on, off)
            ]
            assert steps[0].tokens == steps[1].tokens


async def test_events_tell_which_characters_were_forced(make_lab):
    """Drawn characters lie outside of the forced spans, dictated ones inside."""
    lab = make_lab()
    session = await lab.session(STORY, Special("<|im_end|>"))
    rule = Constraint("regex", "because of the [a-c]{3} user")
    *events, result = await lab.events(session, rule, max_tokens=40)
    drawn = ""
    for event in events:
        spans = [range(start, end) for start, end in event.forced_spans]
        drawn += "".join(c for at, c in enumerate(event.text) if not any(at in s for s in spans))
        assert bool(event.forced_spans) == bool(event.forced)
    assert len(drawn) >= 3
    assert drawn in result.text
    assert "because of the" not in drawn
