"""A chat model's folder made here: a tokenizer trained on a few sentences, random weights or none.

It speaks no language, but everything around it is real: the layout of the folder, a byte-level BPE
tokenizer, a chat template with tools, the architecture (Qwen2).
"""

import json
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Final

SENTENCES: Final = (
    "Hello! How are you today? I am fine, thank you, and you?",
    "The capital of France is Paris. It is a fine city, and it is not far from here.",
    "What would you like to talk about? We could talk about the weather, or about music.",
    "One, two, three, four, five, six, seven, eight, nine, ten.",
    "Please tell me a story about a small dog that lived in a big house by the sea.",
    "It was a warm day, and the dog went down to the water to see what was there.",
    '{"name": "get_weather", "arguments": {"city": "Paris"}}',
)

MARKS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

TEMPLATE: Final = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
{{- '# Tools\\n' }}{%- for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}
{{- 'Call one as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
{{- '\\n</tool_response><|im_end|>\\n' }}
{%- elif message.role != 'system' or not loop.first %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Qwen2's sizes, by the names in its configuration."""

    hidden_size: int = 64
    intermediate_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 2
    num_key_value_heads: int = 1
    vocab_size: int = 512
    max_position_embeddings: int = 2048
    torch_dtype: str = "float32"


QWEN_7B: Final = Geometry(3584, 18_944, 28, 28, 4, 152_064, 32_768, "bfloat16")
"""Qwen2.5-7B's."""


def write_model(folder: Path, geometry: Geometry = Geometry(), *, seed: int | None = 0) -> Path:
    """Write the folder; returns it. `seed` None: no weights, for a loader that makes them up.

    Weights need torch and transformers; they are few enough for a processor.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, geometry.vocab_size, geometry.max_position_embeddings)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        **asdict(geometry),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.2,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generation = {"eos_token_id": [2, 0], "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    if seed is not None:
        _write_weights(folder, seed)
    return folder


def write_tokenizer(folder: Path, size: int, context: int) -> None:
    """A byte-level BPE tokenizer with a chat template; every text can be written with it.

    All `size` tokens stand for something: what training leaves over are made-up words, so that
    random weights say something that can be spoken.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(size, 512),
        special_tokens=list(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    described = json.loads(tokenizer.to_str())
    vocabulary = described["model"]["vocab"]
    words = (word for number in count() if (word := made_up_word(number)) not in vocabulary)
    for word in islice(words, size - len(vocabulary)):
        vocabulary[word] = len(vocabulary)
    (folder / "tokenizer.json").write_text(json.dumps(described))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def made_up_word(number: int) -> str:
    """A word of three syllables or more with a space before it, as byte-level BPE writes that; now
    and then with a comma or a full stop."""
    left, syllables = number + 75 * 75, ""
    while left:
        left, rest = divmod(left, 75)
        syllables += "bdfgklmnprstvwz"[rest // 5] + "aeiou"[rest % 5]
    return "\u0120" + syllables + {5: ",", 13: "."}.get(number % 16, "")


def _write_weights(folder: Path, seed: int) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder, safe_serialization=True)
