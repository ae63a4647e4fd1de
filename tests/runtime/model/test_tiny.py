"""The tiny model: reproducible, shaped like a real one, and sensitive to its whole prompt."""

import torch

from phloem.runtime.model.tiny import tiny_model


def test_equal_arguments_make_equal_models(tiny, pages):
    """The seed decides the weights, and the fingerprint tells models apart."""
    same, other = tiny_model(), tiny_model(seed=1)
    ids = tiny.tokenizer.encode("because the answer is")
    logits = [pages(m.decoder).logits(ids) for m in (tiny, same, other)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])
    assert tiny.fingerprint == same.fingerprint != other.fingerprint


def test_it_has_the_parts_of_a_real_model(tiny):
    """Tokenizer, chat format, KV size and limits are there and agree."""
    decoder = tiny.decoder
    assert decoder.vocab_size >= tiny.tokenizer.vocab_size
    assert tiny.eos_ids == {0, 2}
    assert set(tiny.chat.prefix) == {"system", "user", "assistant"}
    kv = decoder.new_kv(pages=5, page_size=8)
    size = sum(t.nbytes for t in [*kv.keys, *kv.values])
    assert size == 5 * 8 * decoder.kv_bytes_per_token()
    assert (
        decoder.max_positions
        == tiny_model(max_positions=decoder.max_positions).config.max_positions
    )


def test_the_vocabulary_can_be_widened(pages):
    """`vocab` sets the width of the logits, for use with a larger tokenizer."""
    decoder = tiny_model(vocab=1000, layers=1).decoder
    assert pages(decoder).logits([999]).shape == (1, 1000)


def test_greedy_text_depends_on_the_first_token(tiny, pages):
    """Different openings lead to different texts, so a lost prefix is noticed."""
    runner = pages(tiny.decoder)
    texts = {tuple(runner.greedy([first, *range(20, 40)], 16)) for first in range(100, 110)}
    assert len(texts) == 10
