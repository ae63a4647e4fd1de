"""The native decoder against torch in float32 on equally rounded numbers, and against itself."""

from __future__ import annotations

import pytest
import torch

from phloem.errors import ConfigError
from phloem.runtime.model.config import DecoderConfig, RopeScaling
from phloem.runtime.model.convert import Held, Tensors, convert
from phloem.runtime.native.abi import Library
from phloem.runtime.native.decoder import NativeDecoder
from phloem.runtime.native.packing import unsupported

from .conftest import MakeNative
from .support import (
    SMALL,
    Chunk,
    RandomWeights,
    Runner,
    reference,
    small,
    tokens,
)

# Relative error (rms) of a row's logits. The reference rounds weights and activations alike; what
# is left is the KV in bfloat16 and ties: values of V that are a half or a quarter of their block's
# largest lie half-way between two 8-bit integers, and the last bit decides.
TOLERANCE: dict[Held, float] = {"bfloat16": 0.02, "int8": 0.06, "int4": 0.06}
# The matrix unit's attention also rounds queries and weights to bfloat16, as torch's may.
ATTENTION_ROUNDS = 0.03


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Of the worst row."""
    return float(((got - want).norm(dim=-1) / want.norm(dim=-1)).max())


def ragged(runner: Runner) -> torch.Tensor:
    """Prefill, chunks on cached prefixes, decode rows, all mixed; every logit."""
    first = runner.step(Chunk(0, tokens(37, 1), True), Chunk(1, tokens(5, 2), True))
    second = runner.step(
        Chunk(1, tokens(1, 3), True), Chunk(2, tokens(70, 4), True), Chunk(0, tokens(18, 5), True)
    )
    third = runner.step(*(Chunk(i, tokens(1, 6 + i), True) for i in range(3)))
    return torch.cat((first, second, third))


def without_attention(config: DecoderConfig, held: Held) -> Tensors:
    """Random weights whose output projections are zero."""
    tensors = convert(RandomWeights(config), held)
    for layer in range(config.layers):
        for part in ("weight", "q8", "scale", "minimum"):
            if f"layers.{layer}.output.{part}" in tensors:
                tensors[f"layers.{layer}.output.{part}"].zero_()
    return tensors


@pytest.mark.parametrize("held", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_logits_equal_torch(
    native: MakeNative, instruction_set: str, held: Held, page_size: int
) -> None:
    """Ragged batches on cached prefixes give torch's logits on equally rounded activations."""
    weights = RandomWeights(SMALL)
    decoder = native(weights, held, instruction_set=instruction_set)
    want = ragged(Runner(reference(SMALL, convert(weights, held)), page_size, 256))
    got = ragged(Runner(decoder, page_size, 256))
    assert relative_error(got, want) < max(TOLERANCE[held], ATTENTION_ROUNDS)


@pytest.mark.parametrize("held", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13, 17, 70])
def test_matrices_are_exact(
    native: MakeNative, library: Library, instruction_set: str, held: Held, rows: int
) -> None:
    """With attention silenced, logits equal torch's on equally rounded activations.

    Not in every row: a sum that differs in its last bit may fall on the other side of a tie.
    """
    tensors = without_attention(SMALL, held)
    decoder = NativeDecoder(library, SMALL, tensors, 2, instruction_set)
    got = Runner(decoder, 16).step(Chunk(0, tokens(rows), True))
    want = Runner(reference(SMALL, tensors), 16).step(Chunk(0, tokens(rows), True))
    errors = (got - want).norm(dim=-1) / want.norm(dim=-1)
    assert errors.median() < 1e-5
    assert errors.max() < TOLERANCE[held]


@pytest.mark.parametrize("name", ["amx", "avx512bf16"])
@pytest.mark.parametrize("held", ["int8", "int4"])
@pytest.mark.parametrize("rows", [15, 16, 31, 33, 80, 131])
def test_the_matrix_unit_gives_the_bits_of_vectors(
    library: Library, name: str, held: Held, rows: int
) -> None:
    """Quantised products by tiles are those of AVX-512 bit for bit, beyond 64 blocks as well."""
    if name not in library.instruction_sets():
        pytest.skip(f"this CPU has no {name}")
    config = small(hidden_size=96, mlp_size=2080)
    tensors = without_attention(config, held)
    got, want = (
        Runner(NativeDecoder(library, config, tensors, 1, each), 16).step(
            Chunk(0, tokens(rows), True)
        )
        for each in (name, "avx512")
    )
    assert torch.equal(got, want)


FEATURES = {
    "biases": (SMALL, True),
    "query and key norms": (small(family="qwen3", qk_norm=True), False),
    "untied head": (small(tied_head=False), False),
    "sliding window": (small(window=11), False),
    "window beyond a segment": (small(window=300), False),
    "yarn": (small(rope_scaling=RopeScaling("yarn", 4.0, 512)), False),
    "no grouping": (small(heads=3, kv_heads=3), False),
    "one KV head": (small(heads=6, kv_heads=1), False),
    "heads of 16": (small(heads=6, kv_heads=2, head_dim=16), False),
    "heads of 80": (small(heads=4, kv_heads=2, head_dim=80), False),
    "heads of 128": (small(heads=2, kv_heads=1, head_dim=128), False),
    "odd vocabulary": (small(vocab_size=205), False),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_features_equal_torch(native: MakeNative, instruction_set: str, feature: str) -> None:
    """Every option of the family is computed as torch computes it, also beyond 256 keys."""
    config, bias = FEATURES[feature]
    weights = RandomWeights(config, bias=bias)
    decoder = native(weights, "bfloat16", instruction_set=instruction_set)
    chunks = [Chunk(0, tokens(330), True)], [Chunk(0, tokens(1), True), Chunk(1, tokens(3), True)]
    runners = [Runner(decoder, 16), Runner(reference(config, convert(weights, "bfloat16")), 16)]
    got, want = (torch.cat([runner.step(*step) for step in chunks]) for runner in runners)
    rounded = instruction_set == "amx" and config.head_dim % 32 == 0
    assert relative_error(got, want) < (ATTENTION_ROUNDS if rounded else TOLERANCE["bfloat16"])


@pytest.mark.parametrize("held", ["bfloat16", "int8", "int4"])
def test_a_row_does_not_depend_on_its_batch(
    native: MakeNative, instruction_set: str, held: Held
) -> None:
    """Logits are the same bits alone, in a batch, in chunks, in drafts, with any page size."""
    decoder = native(RandomWeights(SMALL), held, instruction_set=instruction_set)
    prompt = tokens(600)
    whole = Runner(decoder, 16).step(Chunk(0, prompt, True))

    one_by_one = Runner(decoder, 64)
    one_by_one.step(Chunk(0, prompt[:590]))
    for i in range(590, 600):
        assert torch.equal(one_by_one.step(Chunk(0, prompt[i : i + 1]))[0], whole[i])

    cut = Runner(decoder, 1, 2048)
    parts = [cut.step(Chunk(0, prompt[a:b], True)) for a, b in ((0, 7), (7, 300), (300, 600))]
    assert torch.equal(torch.cat(parts), whole)

    crowd = Runner(decoder, 16, 512)
    others = [Chunk(i, tokens(1 + 13 * i, i)) for i in range(1, 20)]
    crowd.step(*others[:9], Chunk(0, prompt[:599]), *others[9:])
    together = crowd.step(*(Chunk(i, tokens(1, i)) for i in range(1, 20)), Chunk(0, prompt[599:]))
    assert torch.equal(together[-1], whole[-1])


def test_only_wanted_rows_go_through_the_last_layer(native: MakeNative) -> None:
    """Any choice of rows, none included, gives their logits of all, and the whole prompt's KV."""
    decoder, prompt = native(RandomWeights(SMALL), "int4"), tokens(90)
    whole = Runner(decoder, 16)
    everything = whole.step(Chunk(0, prompt, True))
    for chosen in ([], [0], [3, 17, 18, 89]):
        runner = Runner(decoder, 16)
        batch = runner.batch([Chunk(0, prompt)])
        batch.logit_rows = torch.tensor(chosen, dtype=torch.int64)
        assert torch.equal(decoder.forward(batch, runner.kv), everything[chosen])
        for mine, all_rows in zip(runner.kv.keys, whole.kv.keys, strict=True):
            assert torch.equal(mine, all_rows)


class TiedTokens(RandomWeights):
    """Each token has the logits of the one 500 before it, and token `lost` has none."""

    lost: int | None = None

    def tensor(self, name: str) -> torch.Tensor:
        values = super().tensor(name)
        if "embed_tokens" in name:
            values = values[:500].repeat(len(values) // 500 + 1, 1)[: len(values)]
            if self.lost is not None:
                values[self.lost] = float("nan")
        return values


@pytest.mark.parametrize("held", ["bfloat16", "int8"])
@pytest.mark.parametrize("vocab", [200, 1999])
def test_the_likeliest_tokens_are_found_on_the_way(
    native: MakeNative, instruction_set: str, held: Held, vocab: int
) -> None:
    """They are the first largest logits of each row, whatever the rows, threads and pieces."""
    config = small(vocab_size=vocab)
    for threads in (1, 3):
        decoder = native(TiedTokens(config), held, threads, instruction_set=instruction_set)
        runner = Runner(decoder, 16)
        for chunks in ([Chunk(0, tokens(70), True)], [Chunk(0, [3]), Chunk(1, tokens(2))]):
            batch = runner.batch(chunks)
            logits = decoder.forward(batch, runner.kv)
            assert batch.likeliest == logits.numpy().argmax(axis=-1).tolist()


@pytest.mark.parametrize("lost", [0, 130, 1998])
def test_no_token_is_likeliest_of_no_numbers(
    native: MakeNative, instruction_set: str, lost: int
) -> None:
    """A row with a NaN among its logits has no likeliest token, wherever the NaN is."""
    weights = TiedTokens(small(vocab_size=1999))
    weights.lost = lost
    decoder = native(weights, "bfloat16", instruction_set=instruction_set)
    runner = Runner(decoder, 16)
    batch = runner.batch([Chunk(0, [5]), Chunk(1, [6, 8])])
    assert decoder.forward(batch, runner.kv).isnan().sum(dim=-1).tolist() == [1, 1]
    assert batch.likeliest == [-1, -1]


def test_threads_change_nothing(native: MakeNative) -> None:
    """One, two and five threads give the same bits."""
    results = [ragged(Runner(native(RandomWeights(SMALL), "int4", n), 16)) for n in (1, 2, 5)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("held", ["int4", "bfloat16"])
def test_shares_of_rows_change_nothing(native: MakeNative, held: Held) -> None:
    """Threads that have rows of their own, of unequal numbers too, give the bits of one alone."""
    prompt = Chunk(0, tokens(330))
    results = [Runner(native(RandomWeights(SMALL), held, n), 16).step(prompt) for n in (1, 2, 4)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_keys_and_values_are_torchs(native: MakeNative) -> None:
    """The pool holds the rotated keys and the values, and slots of nobody stay zero."""
    weights = RandomWeights(SMALL)
    runners = [
        Runner(native(weights, "bfloat16"), 16),
        Runner(reference(SMALL, convert(weights, "bfloat16")), 16),
    ]
    for runner in runners:
        runner.step(Chunk(0, tokens(40)))
    for mine, exact in zip(
        runners[0].kv.keys + runners[0].kv.values,
        runners[1].kv.keys + runners[1].kv.values,
        strict=True,
    ):
        assert torch.equal(mine == 0, exact == 0)
        written = exact.flatten(2).any(dim=-1)
        assert relative_error(mine.float().flatten(2)[written], exact.flatten(2)[written]) < 0.02


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokens": torch.tensor([0, 200])}, "vocabulary"),
        ({"tokens": torch.tensor([-1, 0])}, "vocabulary"),
        ({"slots": torch.tensor([0, 64 * 16])}, "slot"),
        ({"pages": torch.tensor([[64]])}, "page"),
        ({"query_starts": [0, 1]}, "query_starts"),
        ({"context_lens": [1]}, "context_lens"),
        ({"context_lens": [17]}, "context_lens"),
        ({"positions": torch.tensor([1, 2])}, "positions"),
        ({"logit_rows": torch.tensor([2])}, "logit row"),
    ],
)
def test_a_bad_batch_is_refused(native: MakeNative, change: dict[str, object], reason: str) -> None:
    """A batch that leaves vocabulary, pool or page table raises, and writes nothing."""
    runner = Runner(native(RandomWeights(SMALL), "int4"), 16)
    batch = runner.batch([Chunk(0, [1, 2])])
    for name, value in change.items():
        setattr(batch, name, value)
    with pytest.raises(ValueError, match=reason):
        runner.decoder.forward(batch, runner.kv)
    assert all(not layer.any() for layer in runner.kv.keys)


def test_an_unknown_instruction_set_is_an_error(library: Library) -> None:
    """A name that this CPU lacks is refused and the known ones are listed."""
    tensors = convert(RandomWeights(SMALL), "int4")
    with pytest.raises(ConfigError, match="mmx") as caught:
        NativeDecoder(library, SMALL, tensors, 1, "mmx")
    assert library.instruction_sets()[0] in caught.value.hint


def test_the_contract_is_the_torch_decoders(native: MakeNative) -> None:
    """Sizes and KV bytes are those of the torch decoder in bfloat16."""
    weights = RandomWeights(SMALL)
    mine, torchs = native(weights, "bfloat16"), reference(SMALL, convert(weights, "bfloat16"))
    assert (mine.vocab_size, mine.max_positions) == (torchs.vocab_size, torchs.max_positions)
    assert mine.kv_bytes_per_token() == torchs.kv_bytes_per_token() // 2
    kv = mine.new_kv(3, 8)
    assert kv.keys[0].shape == (3, 8, SMALL.kv_heads, SMALL.head_dim)


def test_a_config_is_taken_whole() -> None:
    """A field added to `DecoderConfig` has to be thought of here: these are all there are."""
    assert set(DecoderConfig.__dataclass_fields__) == {
        "family", "vocab_size", "hidden_size", "mlp_size", "layers", "heads", "kv_heads",
        "head_dim", "max_positions", "norm_eps", "rope_theta", "rope_scaling", "tied_head",
        "qk_norm", "window",
        # Gemma 3's alone, which the native decoder refuses.
        "layer_windows", "local_rope_theta", "query_scale",
    }  # fmt: skip
    assert "Gemma 3" in (unsupported(small(family="gemma3"), {}) or "")
