"""Voices that are stored as a transformer's inputs."""

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")
pytest.importorskip("safetensors", reason="safetensors comes with duologue[moshi]")

import torch
from safetensors.torch import save

from duologue.models.moshi.language_model import LanguageModel
from duologue.models.moshi.moshi_config import DepthConfig, MoshiConfig, TransformerConfig
from duologue.models.moshi.sampling import Sampling
from duologue.models.moshi.voice_prompts import NoVoice, voice_codes

CODEBOOKS, CARD, WIDTH, FRAMES = 4, 40, 512, 12


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    acoustic = (1,) * (CODEBOOKS - 1)
    made = LanguageModel(
        MoshiConfig(
            n_q=2 * CODEBOOKS,
            agent_codebooks=CODEBOOKS,
            card=CARD,
            text_card=50,
            text_card_out=50,
            delays=(0, 0, *acoustic, 0, *acoustic),
            temporal=TransformerConfig(
                d_model=WIDTH, num_heads=4, num_layers=1, hidden=32, context=32
            ),
            depth=DepthConfig(
                d_model=16,
                num_heads=2,
                num_layers=1,
                hidden=(16,) * CODEBOOKS,
                schedule=tuple(range(CODEBOOKS)),
            ),
        )
    )
    generator = torch.Generator().manual_seed(5)
    for size, table in enumerate([made.text_emb, *made.emb]):
        noise = torch.randn(table.weight.shape, generator=generator)
        table.weight.copy_((noise / (1 + 0.2 * size)).bfloat16())
    return made


def inputs_of(model: LanguageModel, codes: Any, dtype: Any = torch.float32) -> Any:
    """What the transformer is given while these codes, ``[frames, codebooks]``, are forced."""
    seen: list[Any] = []
    hook = model.transformer.register_forward_pre_hook(
        lambda module, args: seen.append(args[0].to(dtype)[None].clone())
    )
    state, everyone = model.new_state(1), torch.ones(1, dtype=torch.bool)
    for frame in codes:
        given = torch.cat([torch.tensor([3]), frame])[None]
        model.step(torch.full((1, CODEBOOKS), 7), given, Sampling.new(1), state, everyone)
    hook.remove()
    return torch.stack(seen)


@pytest.fixture(scope="module")
def codes() -> Any:
    generator = torch.Generator().manual_seed(6)
    return torch.randint(0, CARD, (FRAMES, CODEBOOKS), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_codes_are_those_the_inputs_were_made_of(
    model: LanguageModel, codes: Any, dtype: Any
) -> None:
    """But for the last two frames: an input comes a step after its frame, and a delay later."""
    inputs = inputs_of(model, codes, dtype)
    content = save({"embeddings": inputs, "cache": torch.zeros(1, 9, 4, dtype=torch.int64)})
    assert voice_codes(content, model) == codes[:-2].tolist()


def test_inputs_that_begin_later_begin_with_a_later_frame(model: LanguageModel, codes: Any) -> None:
    content = save({"embeddings": inputs_of(model, codes)[5:, 0]})
    assert voice_codes(content, model) == codes[4:-2].tolist()


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"other": torch.zeros(3, WIDTH)}, "no tensor embeddings of 512 channels"),
        ({"embeddings": torch.zeros(3, WIDTH + 1)}, "no tensor embeddings of 512 channels"),
        ({"embeddings": torch.zeros(WIDTH)}, "no tensor embeddings of 512 channels"),
        ({"embeddings": torch.zeros(3, 2, WIDTH)}, "no tensor embeddings of 512 channels"),
        ({"embeddings": torch.ones(3, WIDTH)}, "no sums of this model's embeddings"),
        ({"embeddings": torch.zeros(3, WIDTH)}, "no frames of the agent's"),
        ({"embeddings": torch.zeros(0, WIDTH)}, "no frames of the agent's"),
    ],
)
def test_what_is_no_voice_of_the_model_is_told(
    model: LanguageModel, tensors: dict[str, Any], words: str
) -> None:
    with pytest.raises(NoVoice, match=words):
        voice_codes(save(tensors), model)


def test_another_models_voice_is_told(model: LanguageModel, codes: Any) -> None:
    inputs = inputs_of(model, codes)
    with pytest.raises(NoVoice, match="no sums of this model's embeddings"):
        voice_codes(save({"embeddings": inputs.flip(-1)}), model)


def test_what_is_no_safetensors_file_is_told(model: LanguageModel) -> None:
    with pytest.raises(NoVoice, match="no safetensors file"):
        voice_codes(b"PK\x03\x04 a pickle", model)
