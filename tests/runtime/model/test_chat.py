"""Chat templates cut into prefixes and suffixes."""

import pytest

from phloem.errors import Unsupported
from phloem.programs.protocol import Special, Text
from phloem.runtime.model.chat import chat_format, split_specials

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_SPECIALS = ["<|im_start|>", "<|im_end|>"]
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}"
    "{% endif %}"
)
# The shape of Llama 3's template: a begin token, headers, trimmed content.
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim"
    " + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# The shape of Mistral's: no system role, strict alternation.
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}"
)
# The shape of Qwen3's: the last answer is shown with an empty reasoning block.
QWEN3 = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def text(segments):
    """Segments as a template would write them."""
    return "".join(s.token if isinstance(s, Special) else s.text for s in segments)


def test_chatml_is_cut_at_its_messages():
    """Each role's prefix and suffix hold special tokens and unhealed text."""
    chat = chat_format(CHATML, "m", CHATML_SPECIALS)
    assert chat.prefix["user"] == (Special("<|im_start|>"), Text("user\n", heal=False))
    assert chat.suffix["user"] == (Special("<|im_end|>"), Text("\n", heal=False))
    assert set(chat.prefix) == set(chat.suffix) == {"system", "user", "assistant"}
    assert chat.begin == ()
    assert chat.default_system is None


def test_a_default_system_message_is_found():
    """What a template writes when there is no system message is known by its content."""
    chat = chat_format(DEFAULT_SYSTEM + CHATML, "m", CHATML_SPECIALS, bos="<|im_start|>")
    assert chat.default_system == "Be kind."
    assert text(chat.prefix["system"]) == "<|im_start|>system\n"
    assert chat.begin == ()


def test_a_begin_token_opens_the_conversation_once():
    """A begin-of-sequence token that precedes all messages is no part of any role."""
    specials = ["<|bos|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    chat = chat_format(LLAMA3, "m", specials, bos="<|bos|>")
    assert chat.begin == (Special("<|bos|>"),)
    assert text(chat.prefix["system"]) == "<|start_header_id|>system<|end_header_id|>\n\n"
    assert chat.suffix["assistant"] == (Special("<|eot_id|>"),)


def test_a_model_without_a_system_role_has_none():
    """Roles that the template refuses are absent, the others work."""
    chat = chat_format(MISTRAL, "m", ["<s>", "</s>", "[INST]", "[/INST]"], "<s>", "</s>")
    assert set(chat.prefix) == {"user", "assistant"}
    assert chat.begin == (Special("<s>"),)
    assert text(chat.prefix["user"]) == "[INST] "
    assert text(chat.suffix["user"]) == " [/INST]"
    assert chat.suffix["assistant"] == (Special("</s>"),)


def test_a_reasoning_block_in_old_answers_is_left_to_the_model():
    """What the template adds to a finished answer is not put before a new one."""
    chat = chat_format(QWEN3, "m", CHATML_SPECIALS)
    assert text(chat.prefix["assistant"]) == "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ messages | length }}", "left out"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "twice"),
        ("{% for m in messages | reverse %}{{ m.content }}|{% endfor %}", "moved"),
        ("{% for m in messages %}{{ loop.length }}{{ m.content }};{% endfor %}", "later messages"),
        ("{% for m in messages %}{{ m.content }}{{ loop.index }}{% endfor %}", "ends differently"),
        ("{% if %}", "no valid template"),
        ("{{ messages[7].nothing.at_all }}", "rendered"),
        ("{{ 1 + messages[0].content }}", "rendered"),
        ("{{ ''.__class__.__mro__ }}", "rendered"),
    ],
)
def test_templates_that_cannot_be_cut_are_refused_with_the_reason(template, why):
    """A template whose text depends on more than roles is Unsupported, and says why."""
    with pytest.raises(Unsupported, match=why):
        chat_format(template, "m", [])


def test_special_tokens_are_split_longest_first():
    """Where one special token begins another, the longer one is found."""
    assert split_specials("a<x>b<x>>", ["<x>", "<x>>"]) == (
        Text("a", heal=False),
        Special("<x>"),
        Text("b", heal=False),
        Special("<x>>"),
    )
    assert split_specials("", ["<x>"]) == ()
    assert split_specials("plain", []) == (Text("plain", heal=False),)
