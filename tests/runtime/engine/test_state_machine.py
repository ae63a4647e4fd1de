"""Random lives of sessions on a small pool, audited after every action.

The machine drives the scheduler's steps itself, without the engine's thread, so that each
example can be repeated. Whatever it does: the counts add up, every cached page holds the KV of its
tokens, and every step ends in exactly one outcome.
"""

import time
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from phloem.errors import Cancelled, DeadlineExceeded, OutOfMemory
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams, Special, Text
from phloem.runtime.engine import completion
from phloem.runtime.engine.audit import audit
from phloem.runtime.engine.config import EngineConfig
from phloem.runtime.engine.constrained import Constrained
from phloem.runtime.engine.forecast import Interest
from phloem.runtime.engine.generation import Generation
from phloem.runtime.engine.messages import Failed, Generated, Progress, Scored
from phloem.runtime.engine.noise import Noise
from phloem.runtime.engine.params import make_output_text
from phloem.runtime.engine.prefix import Prefix
from phloem.runtime.engine.scheduler import step
from phloem.runtime.engine.scoring import Scoring
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.state import EngineState
from phloem.runtime.engine.transcript import Transcript
from phloem.runtime.engine.vocabulary import Vocabulary
from phloem.runtime.model.batch import ForwardBatch
from phloem.runtime.model.tiny import tiny_model

MODEL = tiny_model(layers=1)
VOCABULARY = Vocabulary(MODEL.tokenizer, MODEL.decoder.vocab_size, MODEL.eos_ids)
COMPILER = GrammarCompiler(MODEL.tokenizer.to_json(), VOCABULARY.width, sorted(MODEL.eos_ids))
WORDS = ["the user", " because", " be", " yes", "a", ' {"', " answer is"]
RULES = [
    None,
    Constraint("regex", r"[a-z ]{4,12}\."),
    Constraint("regex", "because of the (user|system)"),
    Constraint("json_schema", '{"type":"array","items":{"type":"boolean"}}', finish="force"),
]
PICK = st.integers(0, 1 << 16)
EXPECTED = (Cancelled, DeadlineExceeded, OutOfMemory)

# A rule is drawn only where it does something, or most actions of a life would be none.
room_for_a_life = precondition(lambda self: len(self.lives) < 8)
idle_life = precondition(lambda self: self.idle)
busy_life = precondition(lambda self: self.busy)
work_left = precondition(lambda self: self.state.running or self.state.waiting)
cached_page = precondition(lambda self: next(self.state.cache.nodes(), None) is not None)
two_tiers = precondition(lambda self: self.state.cache.tier)


def choose(lives, pick):
    return lives[pick % len(lives)]


class Life:
    """A session as the machine keeps it."""

    def __init__(self, transcript, namespace):
        self.transcript = transcript
        self.namespace = namespace
        self.interest = Interest()
        self.job = None
        self.prompt = None
        self.messages = []


class Sessions(RuleBasedStateMachine):
    """Up to eight sessions in two namespaces on a pool of 160 tokens."""

    config = EngineConfig(
        kv_tokens=160, page_size=4, max_running=3, queue_limit=99, max_rows=12, pinned_share=0.2
    )
    limit = 160

    def __init__(self):
        super().__init__()
        self.state = EngineState(MODEL.decoder, VOCABULARY, self.config)
        self.lives = []
        self.pins = []
        self.open("")
        self.open("tenant")

    # Sessions

    @room_for_a_life
    @rule(namespace=st.sampled_from(["", "tenant"]))
    def open(self, namespace):
        self.lives.append(Life(Transcript(MODEL.tokenizer, 0), namespace))

    @property
    def idle(self):
        return [life for life in self.lives if life.job is None]

    @property
    def busy(self):
        return [life for life in self.lives if life.job is not None]

    @idle_life
    @rule(pick=PICK, words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4))
    def append(self, pick, words):
        choose(self.idle, pick).transcript.append([Text(word) for word in words])

    @idle_life
    @rule(pick=PICK)
    def append_special(self, pick):
        choose(self.idle, pick).transcript.append([Special("<|im_end|>"), Text("user")])

    @idle_life
    @room_for_a_life
    @rule(pick=PICK)
    def fork(self, pick):
        life = choose(self.idle, pick)
        self.lives.append(Life(life.transcript.copy(), life.namespace))

    @idle_life
    @rule(pick=PICK)
    def resume_from_a_snapshot(self, pick):
        life = choose(self.idle, pick)
        fresh = Transcript(MODEL.tokenizer, 0)
        fresh.restore(life.transcript.snapshot("f", "", life.namespace))
        assert fresh.prompt().tokens == life.transcript.prompt().tokens
        life.transcript = fresh

    @precondition(lambda self: len(self.lives) > 1)
    @rule(pick=PICK)
    def close(self, pick):
        life = self.lives.pop(pick % len(self.lives))
        self.state.cache.expect(life.interest, None)
        if life.job is not None:
            self.state.cancel(life.job)

    # Steps

    def submit(self, life, job):
        """As `Engine.submit` does."""
        if job.prompt + job.requested() > self.state.max_tokens:
            return
        life.job = job
        self.state.enqueue(job)

    @idle_life
    @rule(
        pick=PICK,
        constraint=st.sampled_from(RULES),
        heat=st.sampled_from([0, 1.0, 2.0]),
        tokens=st.integers(0, 24),
        stop=st.sampled_from([(), ("a",), (" b",)]),
        late=st.sampled_from([False] * 9 + [True]),
        jump=st.booleans(),
        drafts=st.booleans(),
    )
    def generate(self, pick, constraint, heat, tokens, stop, late, jump, drafts):
        life = choose(self.idle, pick)
        params = SamplingParams(temperature=heat, max_tokens=tokens, stop=stop)
        prompt = life.prompt = life.transcript.prompt()
        heals = prompt.heal and len(prompt.tokens) > 1 and tokens > 0
        constrained = constraint and Constrained(
            COMPILER.matcher(constraint), VOCABULARY, closes=constraint.finish == "force"
        )
        ids = list(prompt.tokens)
        job = Generation(
            Sequence(life.namespace, ids, len(ids) - 1),
            life.messages.append,
            params=params,
            vocabulary=VOCABULARY,
            noise=Noise(pick, ""),
            text=make_output_text(params),
            constrained=constrained,
            border=VOCABULARY.table.border(ids[-1]) if heals else None,
            jump=jump,
            drafts=drafts,
            deadline=time.monotonic() - 1 if late else None,
            priority=pick % 2,
            interest=life.interest,
        )
        self.submit(life, job)

    @idle_life
    @rule(pick=PICK, choices=st.lists(st.sampled_from(WORDS), max_size=4), bare=st.booleans())
    def score(self, pick, choices, bare):
        life = choose(self.idle, pick)
        prompt = life.prompt = life.transcript.prompt()
        tokens, scored = life.transcript.choices(prompt, choices)
        seq = Sequence(life.namespace, list(tokens), len(tokens) - 1)
        job = Scoring(seq, life.messages.append, choices=scored, bare=bare, interest=life.interest)
        self.submit(life, job)

    @rule(
        pick=PICK,
        next_use=st.sampled_from([None, 0, 1, 5]),
        place=st.sampled_from(["", "ask", "tool"]),
    )
    def hint(self, pick, next_use, place):
        self.state.cache.expect(choose(self.lives, pick).interest, next_use, place)

    @rule(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=6))
    def pin(self, words):
        tokens = MODEL.tokenizer.encode("".join(words))
        self.state.enqueue(Prefix(Sequence("", tokens, len(tokens)), self.pins.append))

    @busy_life
    @rule(pick=PICK)
    def cancel(self, pick):
        self.state.cancel(choose(self.busy, pick).job)
        self.read()

    @work_left
    @rule(steps=st.integers(1, 12))
    def run(self, steps):
        for _ in range(steps):
            step(self.state)
            audit(self.state)
            self.read()

    @work_left
    @rule()
    def run_until_idle(self):
        for _ in range(2000):
            if not self.state.running and not self.state.waiting:
                break
            step(self.state)
        self.read()
        assert [*self.state.running, *self.state.waiting] == [], "a step never ended"
        assert all(life.job is None for life in self.lives)
        assert self.state.pool.used == self.state.pins.pages()

    @work_left
    @rule()
    def fail_a_pass(self):
        """A forward pass that fails ends its jobs only."""
        decoder, self.state.decoder = self.state.decoder, Broken(MODEL.decoder)
        step(self.state)
        self.state.decoder = decoder
        self.read((*EXPECTED, Exception))

    @work_left
    @rule(times=st.integers(1, 12))
    def find_no_memory(self, times):
        """Passes that torch has no memory for are tried again; at worst a job is out of memory."""
        decoder, self.state.decoder = self.state.decoder, Starved(MODEL.decoder, times)
        step(self.state)
        self.state.decoder = decoder
        self.read()

    @work_left
    @rule(times=st.integers(1, 6))
    def find_no_memory_for_a_draw(self, times):
        """Draws that torch has no memory for are made again, from rows computed again."""
        original = completion.sample

        def sample(*given):
            nonlocal times
            times -= 1
            return original(*given) if times < 0 else torch.empty(1 << 60, dtype=torch.uint8)

        completion.sample = sample
        try:
            step(self.state)
        finally:
            completion.sample = original
        self.read()

    def read(self, expected=EXPECTED):
        """What the readers got: progress, and exactly one outcome."""
        for life in self.lives:
            if life.job is None or not life.messages:
                continue
            *progress, last = life.messages
            if isinstance(last, Progress):
                continue
            assert all(isinstance(message, Progress) for message in progress)
            if isinstance(last, Failed):
                assert isinstance(last.error, expected), last.error
            elif isinstance(last, Generated):
                usage = last.usage
                assert usage.reused + usage.prefilled == usage.prompt == len(life.prompt.tokens)
                assert "".join(m.event.text for m in progress) == last.text
                assert tuple(t for m in progress for t in m.event.tokens) == last.tokens
                life.transcript.settle(life.prompt, last.base, last.tokens)
            else:
                assert isinstance(last, Scored)
            life.job = None
            life.messages = []

    # The cache

    @cached_page
    @rule(pages=st.integers(1, 12))
    def evict(self, pages):
        """The device gives pages up: to the host, where there is one."""
        tier, cached = self.state.cache.tier, self.state.pool.cached
        saved = tier.saved if tier else 0
        done = self.state.cache.evict(pages)
        assert self.state.pool.cached == cached - done
        assert tier is None or tier.saved - saved == done

    @cached_page
    @rule()
    def flush(self):
        self.state.flush()
        if not self.state.running:
            assert self.state.pool.free == self.state.pool.pages

    @two_tiers
    @rule(pick=PICK)
    def restore(self, pick):
        """Pages come back from the host for nobody, as far as there is room, and stay cached."""
        away = [node for _, node in self.state.cache.nodes() if not node.on_device]
        if not away:
            return
        node, path = away[pick % len(away)], []
        while node.parent is not None and not node.on_device:
            path.insert(0, node)
            node = node.parent
        if node.on_device:
            self.state.pool.hold(node.page)
        came = self.state.cache.restore(path)
        assert all(node.on_device for node in came)
        for one in [*came, *([node] if node.on_device else [])]:
            self.state.pool.release(one.page)
            self.state.cache.touch(one)

    @two_tiers
    @rule(pages=st.integers(1, 6))
    def forget_on_the_host(self, pages):
        """What lies on the host leaves it for good."""
        for _ in range(pages):
            node = self.state.cache._host_order.take()
            if node is not None:
                self.state.cache.drop(node)

    @cached_page
    @rule(pick=PICK)
    def recompute_a_cached_page(self, pick):
        """The K and V of a random cached page are those of its tokens, computed afresh."""
        nodes = [node for _, node in self.state.cache.nodes()]
        node = nodes[pick % len(nodes)]
        path = []
        while node.parent is not None:
            path.insert(0, node)
            node = node.parent
        tokens = [token for node in path for token in node.tokens]
        fresh = compute(tokens)
        size, last = self.config.page_size, path[-1]
        stored, page = self.state.pool.storage, last.page
        if not last.on_device:
            stored, page = self.state.cache.tier.storage(), last.host
        start = (len(path) - 1) * size
        for layer in range(len(stored.keys)):
            for kept, made in ((stored.keys, fresh.keys), (stored.values, fresh.values)):
                held = kept[layer][page, : len(last.tokens)]
                assert torch.allclose(held, made[layer][start : len(tokens), 0], atol=1e-4)

    @invariant()
    def everything_adds_up(self):
        audit(self.state)

    @invariant()
    def the_books_of_ended_sessions_agree(self):
        forecast = self.state.cache.forecast
        ended = forecast._endings
        assert all(one.ended and one.text == text for text, one in ended.items())
        assert forecast._stems == Counter(one.stem for one in ended.values())
        for place, expected in forecast._open.items():
            assert all(ended[text].place == place for text in expected)
            assert all(ended[text] is one for text, one in expected.items())


class Broken:
    """A decoder whose forward pass fails."""

    def __init__(self, decoder):
        self.device = decoder.device
        self.max_positions = decoder.max_positions
        self.vocab_size = decoder.vocab_size

    def forward(self, batch, kv):
        raise RuntimeError("a broken kernel")


class Starved(Broken):
    """A decoder for which torch finds no memory a number of times."""

    def __init__(self, decoder, times):
        super().__init__(decoder)
        self.decoder = decoder
        self.times = times

    def forward(self, batch, kv):
        if self.times > 0:
            self.times -= 1
            torch.empty(1 << 60, dtype=torch.uint8)
        return self.decoder.forward(batch, kv)


def compute(tokens):
    """KV of `tokens`, in pages of one token."""
    n = len(tokens)
    kv = MODEL.decoder.new_kv(n, 1)
    batch = ForwardBatch(
        tokens=torch.tensor(tokens),
        positions=torch.arange(n),
        slots=torch.arange(n),
        query_starts=[0, n],
        context_lens=[n],
        pages=torch.arange(n)[None],
        logit_rows=torch.tensor([n - 1]),
    )
    MODEL.decoder.forward(batch, kv)
    return kv


SHORT = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Failing passes are logged with their traceback, thousands of times."""
    caplog.set_level("CRITICAL")


class TestSessions(Sessions.TestCase):
    """A short form of the machine: a thousand actions."""

    settings = SHORT


@pytest.mark.slow
class TestSessionsLong(Sessions.TestCase):
    """A hundred thousand actions."""

    settings = settings(SHORT, max_examples=1000, stateful_step_count=100)


class OddPages(Sessions):
    """The same with pages of seven tokens and a pool that is nearly always full."""

    config = EngineConfig(kv_tokens=84, page_size=7, max_running=4, max_rows=9, pinned_share=0.4)


class TestOddPages(OddPages.TestCase):
    """A short form with odd pages."""

    settings = SHORT


class TwoTiers(Sessions):
    """The same with a device pool that is nearly always full, and a small host beside it."""

    config = EngineConfig(
        kv_tokens=96, page_size=4, max_running=3, queue_limit=99, max_rows=12, pinned_share=0.2,
        host_tokens=120, restore_from=6,
    )  # fmt: skip


class TestTwoTiers(TwoTiers.TestCase):
    """A short form with two tiers."""

    settings = SHORT


@pytest.mark.slow
class TestTwoTiersLong(TwoTiers.TestCase):
    """A hundred thousand actions with two tiers."""

    settings = settings(SHORT, max_examples=1000, stateful_step_count=100)


@pytest.mark.slow
class TestOddPagesLong(OddPages.TestCase):
    """A hundred thousand actions with odd pages."""

    settings = settings(SHORT, max_examples=1000, stateful_step_count=100)
