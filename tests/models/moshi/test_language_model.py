"""The language model, frame by frame against the ``moshi`` package's."""

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.language_model import NOT_GIVEN, Frame, LanguageModel, LanguageState
from duologue.models.moshi.sampling import Sampling

FRAMES = 30  # the window is 8


class Talk:
    """Sessions in slots, stepped together."""

    def __init__(self, model: LanguageModel, slots: int) -> None:
        import torch

        self.model = model
        self.slots = slots
        self.state: LanguageState = model.new_state(slots)
        self.sampling = Sampling.new(slots)
        self.everyone = torch.ones(slots, dtype=torch.bool)
        self.free = torch.full((slots, 1 + model.config.agent_codebooks), NOT_GIVEN)

    def step(self, heard: Any, forced: Any = None, active: Any = None) -> Frame:
        return self.model.step(
            heard,
            self.free if forced is None else forced,
            self.sampling,
            self.state,
            self.everyone if active is None else active,
        )


def column(frame: Frame) -> Any:
    """Text and codes, ``[slots, 1 + agent]``."""
    import torch

    return torch.cat([frame.text[:, None], frame.codes], dim=1)


def codes(torch: ModuleType, model: LanguageModel, *shape: int, seed: int = 5) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.config.card, shape, generator=generator)


VARIANTS = {
    "moshi": {},
    "shared sets of weights": {"depformer_weights_per_step_schedule": [0, 1, 2, 2]},
    "narrow embeddings": {"depformer_low_rank_embeddings": 8},
    "norms before the logits": {"depformer_norm": "rms_norm_f32"},
    "one projection": {"depformer_multi_linear": False},
    "grouped keys": {"kv_repeat": 2},
    "layer norm, plain layers": {"norm": "layer_norm", "gating": "none", "hidden_scale": 4},
    "pairs half a head apart": {"positional_embedding": "rope_concat"},
    "longer delays": {"delays": [0, 0, 2, 2, 2, 1, 3, 3, 3]},
    "late text": {"delays": [2, 0, 1, 1, 1, 0, 1, 1, 1], "bias_proj": True},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_greedy_text_and_codes_equal_the_reference_past_the_window(
    changes: dict[str, Any], torch: ModuleType, make_language: Any
) -> None:
    pair = make_language(**changes)
    from moshi.models.lm import LMGen

    reference = LMGen(pair.theirs, use_sampling=False, check=True)
    talk = Talk(pair.ours, slots=2)
    heard = codes(torch, pair.ours, FRAMES, 2, pair.ours.config.user_codebooks)
    seen = 0
    with reference.streaming(2):
        for index in range(FRAMES):
            expected = reference.step(heard[index][:, :, None])
            frame = talk.step(heard[index])
            if expected is None:
                assert not frame.ready.any()
            else:
                assert frame.ready.all()
                assert torch.equal(column(frame), expected[:, :, 0])
                seen += 1
    assert seen > 2 * pair.ours.config.temporal.context


def test_an_idle_slot_stays_where_it_is(torch: ModuleType, language: Any) -> None:
    model = language.ours
    steady, halting = Talk(model, slots=2), Talk(model, slots=2)
    heard = codes(torch, model, FRAMES, 2, model.config.user_codebooks)
    first = torch.tensor([True, False])
    for index in range(FRAMES):
        expected = column(steady.step(heard[index]))
        idle = halting.step(codes(torch, model, 2, 4, seed=index), active=first & False)
        assert not idle.ready.any()
        assert (column(idle) == NOT_GIVEN).all()
        assert torch.equal(column(halting.step(heard[index])), expected)


def test_a_reset_slot_is_as_new_and_the_other_goes_on(torch: ModuleType, language: Any) -> None:
    model = language.ours
    talk, fresh, other = (Talk(model, slots=2) for _ in range(3))
    heard = codes(torch, model, 2 * FRAMES, 2, model.config.user_codebooks)
    for index in range(FRAMES):
        talk.step(heard[index])
        other.step(heard[index])
    talk.state.reset(torch.tensor([True, False]))
    for index in range(FRAMES, 2 * FRAMES):
        now = column(talk.step(heard[index]))
        assert torch.equal(now[0], column(fresh.step(heard[index]))[0])
        assert torch.equal(now[1], column(other.step(heard[index]))[1])


def test_a_fork_equals_its_parent_until_their_inputs_differ(
    torch: ModuleType, language: Any
) -> None:
    model = language.ours
    talk = Talk(model, slots=2)
    for setting in talk.sampling.tensors():
        setting.fill_(5)
    heard = codes(torch, model, 3 * FRAMES, model.config.user_codebooks)
    for index in range(FRAMES):
        talk.step(heard[index].expand(2, -1) * torch.tensor([[1], [0]]))
    talk.state.copy_slot(0, 1)
    for index in range(FRAMES, 2 * FRAMES):
        now = column(talk.step(heard[index].expand(2, -1)))
        assert torch.equal(now[0], now[1])
    apart = False
    for index in range(2 * FRAMES, 3 * FRAMES):
        now = column(talk.step(heard[index].expand(2, -1) * torch.tensor([[1], [0]])))
        apart |= not torch.equal(now[0], now[1])
    assert apart


def test_a_session_put_away_comes_back_in_another_slot(torch: ModuleType, language: Any) -> None:
    model = language.ours
    talk, other = Talk(model, slots=3), Talk(model, slots=3)
    heard = codes(torch, model, 2 * FRAMES, model.config.user_codebooks)
    for index in range(FRAMES):
        talk.step(heard[index].expand(3, -1))
    saved = talk.state.save(0)
    for index in range(FRAMES):
        other.step(codes(torch, model, 3, model.config.user_codebooks, seed=index))
    other.state.restore(2, saved)
    for index in range(FRAMES, 2 * FRAMES):
        expected = column(talk.step(heard[index].expand(3, -1)))[0]
        assert torch.equal(column(other.step(heard[index].expand(3, -1)))[2], expected)


def test_what_is_forced_comes_out_with_its_delays(torch: ModuleType, language: Any) -> None:
    model = language.ours
    talk = Talk(model, slots=1)
    given = codes(torch, model, FRAMES, 1, 1 + model.config.agent_codebooks, seed=9)
    heard = codes(torch, model, FRAMES, 1, model.config.user_codebooks)
    for index in range(FRAMES):
        frame = talk.step(heard[index], given[index])
        if frame.ready.all():
            # The step before this one generated the frame whose acoustic codes came last.
            assert torch.equal(column(frame)[0], given[index - model.config.max_delay][0])


def reference_columns(
    torch: ModuleType, theirs: Any, agent: int, heard: Any, given: Any
) -> tuple[list[list[int]], list[list[int]]]:
    """The plain loop: columns written down one by one, tokens forced or the likeliest.

    Returns the agent's text and codes at every position, and the columns that were read.
    """
    delays = theirs.delays
    positions = len(heard) + max(delays) + 2
    table = [[None] * (theirs.n_q + 1) for _ in range(positions)]
    for frame, tokens in enumerate(heard):
        for row, token in enumerate(tokens, start=1 + agent):
            table[frame + delays[row]][row] = int(token)
    for frame, tokens in enumerate(given):
        for row, token in enumerate(tokens):
            if int(token) != NOT_GIVEN:
                table[frame + 1 + delays[row]][row] = int(token)
    read = []
    with theirs.streaming(1):
        for position in range(len(heard)):
            blank = [theirs.text_initial_token_id] + [theirs.initial_token_id] * theirs.n_q
            column = [
                blank[row] if position <= delays[row] else table[position][row]
                for row in range(theirs.n_q + 1)
            ]
            read.append(column)
            hidden, logits = theirs.forward_text(torch.tensor(column)[None, :, None])
            following = table[position + 1]
            if following[0] is None:
                following[0] = int(logits[0, 0, 0].argmax())
            token = following[0]
            with theirs.depformer.streaming(1):
                for step in range(agent):
                    logits = theirs.forward_depformer(step, torch.tensor([[[token]]]), hidden)
                    if following[1 + step] is None:
                        following[1 + step] = int(logits[0, 0, 0].argmax())
                    token = following[1 + step]
    return [row[: 1 + agent] for row in table[1 : len(heard) + 1]], read


@pytest.mark.parametrize("dep_q", [4, 8], ids=["moshi", "personaplex"])
def test_a_prompt_and_what_follows_equal_a_plain_loop_of_forced_steps(
    dep_q: int, torch: ModuleType, make_language: Any
) -> None:
    """A voice in the agent's codes, then text, then nothing forced; beyond the window."""
    pair = make_language(dep_q=dep_q)
    model, agent = pair.ours, 4
    assert model.config.agent_codebooks == agent
    heard = codes(torch, model, 3 * FRAMES, 4)
    given = torch.full((3 * FRAMES, 1 + agent), NOT_GIVEN)
    given[:10, 1:] = codes(torch, model, 10, agent, seed=7)
    given[:10, 0] = model.config.text_padding
    given[10:FRAMES, 0] = codes(torch, model, FRAMES - 10, seed=8)
    given[FRAMES + 5, 0] = 11
    expected, _ = reference_columns(torch, pair.theirs, agent, heard, given)
    talk = Talk(model, slots=1)
    delays = model.config.delays
    for index in range(3 * FRAMES):
        frame = talk.step(heard[index][None], given[index][None])
        if frame.ready.all():
            base = index - model.config.max_delay
            wanted = [expected[base + delays[row]][row] for row in range(1 + agent)]
            assert column(frame)[0].tolist() == wanted
