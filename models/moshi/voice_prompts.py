"""Voices that are stored as the temporal transformer's inputs, back to the codes they were made of.

PersonaPlex' ``.pt`` voices are such inputs: for each frame the sum of one row of each embedding
table. Tables have as many channels as make a sum of rows all but unique, so the rows are found by
putting in the best one of each table in turn, until none can be bettered, and what is left over
says whether it was so.
"""

from collections.abc import Sequence

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from duologue.models.moshi.language_model import LanguageModel

EMBEDDINGS = "embeddings"
"""The tensor's name: ``[frames, ..., d_model]``, of dimensions of one in between."""

PASSES = 16
LEFT_OVER = 0.03
"""Of an input's norm: what sums in bfloat16 are off by, and less than any wrong row."""


class NoVoice(ValueError):
    """The file is no voice of this model. The text says why."""


def voice_codes(content: bytes, model: LanguageModel) -> list[list[int]]:
    """The agent's codes of a safetensors file, ``[frames][agent_codebooks]``.

    The last frames, whose delayed codes were not put in, are left out. Raises :exc:`NoVoice`.
    """
    try:
        inputs = load(content).get(EMBEDDINGS)
    except SafetensorError as error:
        raise NoVoice(f"it is no safetensors file: {error}") from error
    width = model.config.temporal.d_model
    if inputs is None or inputs.dim() < 2 or inputs.numel() != inputs.shape[0] * width:
        raise NoVoice(f"it has no tensor {EMBEDDINGS} of {width} channels a frame")
    device = model.initial.device
    return _undelayed(_columns(inputs.reshape(-1, width).to(device).float(), model), model)


def _columns(inputs: Tensor, model: LanguageModel) -> Tensor:
    """The text and codes of each input, int64 ``[frames, n_q + 1]``."""
    tables = [model.text_emb.weight, *(one.weight for one in model.emb)]
    rows = torch.full((len(inputs), len(tables)), -1, device=inputs.device)
    left = inputs.clone()
    for _ in range(PASSES):
        before = rows.clone()
        for index, table in enumerate(tables):
            # The last row stands for a stream without input.
            wide = torch.cat([table.float(), table.new_zeros(1, table.shape[1]).float()])
            left += wide[rows[:, index]]
            nearness = 2 * left @ wide.T - wide.square().sum(dim=1)
            rows[:, index] = nearness.argmax(dim=1)
            left -= wide[rows[:, index]]
        if torch.equal(rows, before):
            break
    if bool((left.norm(dim=1) > LEFT_OVER * inputs.norm(dim=1)).any()):
        raise NoVoice("its inputs are no sums of this model's embeddings")
    return rows


def _undelayed(columns: Tensor, model: LanguageModel) -> list[list[int]]:
    """Frames of the agent's codes; what comes before the first one is blank."""
    config = model.config
    delays: Sequence[int] = config.delays[1 : 1 + config.agent_codebooks]
    least = min(delays)
    first = columns[:, 1 + delays.index(least)]
    blank = (first >= config.card).long().cumprod(dim=0)
    start = int(blank.sum()) - least
    frames = len(columns) - start - max(delays)
    codes = torch.stack(
        [
            columns[start + delay : start + delay + max(frames, 0), 1 + row]
            for row, delay in enumerate(delays)
        ],
        dim=1,
    )
    if frames < 1 or bool((codes >= config.card).any()):
        raise NoVoice("its inputs are no frames of the agent's")
    found: list[list[int]] = codes.tolist()
    return found
