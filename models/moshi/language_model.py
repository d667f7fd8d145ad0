"""Moshi's language model: a column of text and codes in, the next one out, 12.5 times a second.

Défossez et al. 2024, arXiv:2410.00037, section 3.4. The agent's text runs ahead of its sound
(*inner monologue*), and the acoustic codes follow the semantic one by a frame (*acoustic delay*):
row ``k`` of the column at position ``p`` belongs to frame ``p - delays[k]``.

Whatever is given instead of generated (a system prompt, a voice, a word put in the agent's mouth)
goes through the same step as *forced* tokens.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from duologue.models.moshi.depth_transformer import NO_TOKEN, DepthTransformer, TokenEmbedding
from duologue.models.moshi.moshi_config import MoshiConfig
from duologue.models.moshi.paged_kv import PagedState
from duologue.models.moshi.sampling import Sampling, choose
from duologue.models.moshi.streaming_state import StreamingState, along, update
from duologue.models.moshi.transformer import TemporalTransformer, make_norm

NOT_GIVEN = -2
"""Among forced tokens: generate this one. Among results: there is none yet."""

__all__ = ["NOT_GIVEN", "NO_TOKEN", "Frame", "LanguageModel", "LanguageState"]


@dataclass(slots=True, eq=False)
class LanguageState(StreamingState):
    """``offset``: int64 ``[slots]``, steps made. ``columns``: int64
    ``[slots, n_q + 1, max_delay + 2]``, a ring of the newest columns."""

    offset: Tensor
    columns: Tensor
    temporal: PagedState

    def reset(self, slots: Tensor) -> None:
        self.offset.masked_fill_(slots, 0)
        self.columns.masked_fill_(along(slots, self.columns), NOT_GIVEN)
        self.temporal.reset(slots)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A step's result. ``text``: int64 ``[slots]``; ``codes``: int64 ``[slots, agent_codebooks]``,
    :data:`NOT_GIVEN` where ``ready``, bool ``[slots]``, is false: in the first ``max_delay``
    steps the frame's acoustic codes are not there yet, and idle slots make none."""

    text: Tensor
    codes: Tensor
    ready: Tensor


class Fused(Protocol):
    """Parts of :class:`LanguageModel` in another way."""

    def embed(self, text: Tensor, codes: Tensor) -> Tensor:
        """The embedded text, ``[slots, d_model]``, and codes, int64 ``[slots, n_q]``, together."""

    def normalize(self, x: Tensor) -> Tensor: ...

    def generate(
        self, hidden: Tensor, logits: Tensor, sampling: Sampling, offset: Tensor, given: Tensor
    ) -> Tensor: ...


class LanguageModel(nn.Module):
    """``fused``: what computes most of a step on a CUDA device; ``None``: torch."""

    delays: Tensor
    initial: Tensor
    fused: Fused | None = None

    def __init__(self, config: MoshiConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.temporal.d_model
        self.text_emb = TokenEmbedding(config.text_card + 1, dim)
        self.emb = nn.ModuleList([TokenEmbedding(config.card + 1, dim) for _ in range(config.n_q)])
        self.transformer = TemporalTransformer(config.temporal)
        self.out_norm = make_norm(config.temporal.norm, dim)
        self.text_linear = nn.Linear(dim, config.text_card_out, bias=config.bias_proj)
        self.depth = DepthTransformer(config)
        self.set_constants()
        self.requires_grad_(False)

    def set_constants(self, device: torch.device | None = None) -> None:
        """Make what is no weight, on a device or where tensors are made by default."""
        config = self.config
        delays = torch.tensor(config.delays, device=device)
        initial = torch.tensor([config.text_card] + [config.card] * config.n_q, device=device)
        self.register_buffer("delays", delays, persistent=False)
        self.register_buffer("initial", initial, persistent=False)

    def new_state(
        self, slots: int, kv_dtype: torch.dtype | None = None, pages: int | None = None
    ) -> LanguageState:
        """See :func:`duologue.models.moshi.paged_kv.new_state` for ``pages``."""
        weight, config = self.text_linear.weight, self.config
        shape = (slots, config.n_q + 1, config.max_delay + 2)
        return LanguageState(
            offset=torch.zeros(slots, dtype=torch.int64, device=weight.device),
            columns=torch.full(shape, NOT_GIVEN, dtype=torch.int64, device=weight.device),
            temporal=self.transformer.new_state(slots, kv_dtype, pages),
        )

    def step(
        self,
        heard: Tensor,
        forced: Tensor,
        sampling: Sampling,
        state: LanguageState,
        active: Tensor,
    ) -> Frame:
        """One frame for every slot that is active, bool ``[slots]``.

        ``heard``: the user's codes of this frame, int64 ``[slots, user_codebooks]``. ``forced``:
        text and codes of the frame that is generated in this step, int64
        ``[slots, 1 + agent_codebooks]``, :data:`NOT_GIVEN` where the model decides.
        """
        made = 1 + self.config.agent_codebooks
        offset, columns = state.offset, state.columns
        own, others = columns[:, :made], columns[:, made:]
        after = self.delays[:made] + 1
        _put(others, offset[:, None] + self.delays[made:], heard, active)
        _put(own, offset[:, None] + after, forced, active)

        column = _get(columns, offset[:, None].expand(-1, columns.shape[1]))
        blank = (offset[:, None] <= self.delays) | ~active[:, None]
        hidden, logits = self._temporal(torch.where(blank, self.initial, column), state, active)

        following = (offset + 1)[:, None].expand(-1, made)
        given = _get(own, following)
        generate = self._generate if self.fused is None else self.fused.generate
        _put(own, following, generate(hidden, logits, sampling, offset, given), active)
        update(offset, offset + 1, active)

        frame = _get(own, offset[:, None] - self.config.max_delay + self.delays[:made])
        ready = active & (offset > self.config.max_delay)
        frame = torch.where(ready[:, None], frame, NOT_GIVEN)
        return Frame(frame[:, 0], frame[:, 1:], ready)

    def _temporal(
        self, column: Tensor, state: LanguageState, active: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A column ``[slots, n_q + 1]`` to the hidden state ``[slots, d_model]`` and the logits
        of the text."""
        x = self.text_emb(column[:, 0])
        if self.fused is None:
            for row, embed in enumerate(self.emb, start=1):
                x = x + embed(column[:, row])
            hidden = self.out_norm(self.transformer(x, state.temporal, active))
        else:
            x = self.fused.embed(x, column[:, 1:])
            hidden = self.fused.normalize(self.transformer(x, state.temporal, active))
        return hidden, self.text_linear(hidden)

    def _generate(
        self, hidden: Tensor, logits: Tensor, sampling: Sampling, offset: Tensor, given: Tensor
    ) -> Tensor:
        """The next column's text and codes, int64 ``[slots, 1 + agent_codebooks]``, where they
        are not given."""
        heat, most = sampling.text_temperature, sampling.text_top_k
        drawn = choose(logits, heat, most, sampling.seed, offset, 0)
        text = _given_or(given[:, 0], drawn)

        def choose_code(logits: Tensor, step: int) -> Tensor:
            heat, most = sampling.audio_temperature, sampling.audio_top_k
            drawn = choose(logits, heat, most, sampling.seed, offset, 1 + step)
            return _given_or(given[:, 1 + step], drawn)

        return torch.cat([text[:, None], self.depth(hidden, text, choose_code)], dim=1)


def _get(columns: Tensor, positions: Tensor) -> Tensor:
    """The entries of ``[slots, rows, places]`` at ``positions``, ``[slots, rows]``."""
    return columns.gather(2, (positions % columns.shape[2])[:, :, None])[:, :, 0]


def _put(columns: Tensor, positions: Tensor, values: Tensor, active: Tensor) -> None:
    """Write ``values``, ``[slots, rows]``, at ``positions`` of the active slots."""
    kept = torch.where(active[:, None], values, _get(columns, positions))
    columns.scatter_(2, (positions % columns.shape[2])[:, :, None], kept[:, :, None])


def _given_or(given: Tensor, generated: Tensor) -> Tensor:
    return torch.where(given == NOT_GIVEN, generated, given)
