"""Slots that are emptied, copied, put away and put back."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.moshi_config import TransformerConfig
from duologue.models.moshi.streaming_state import StreamingState, update
from duologue.models.moshi.transformer import Transformer


@dataclass(slots=True, eq=False)
class Leaf(StreamingState):
    values: Any


@dataclass(slots=True, eq=False)
class Tree(StreamingState):
    count: Any
    leaf: Leaf
    leaves: list[Leaf]


@pytest.fixture
def tree(torch: ModuleType) -> Tree:
    def leaf() -> Leaf:
        return Leaf(torch.arange(6.0).view(3, 2).clone())

    return Tree(torch.tensor([1, 2, 3]), leaf(), [leaf(), leaf()])


def rows(tree: Tree, slot: int) -> list[Any]:
    return [tensor[slot].tolist() for tensor in tree.tensors()]


def test_a_reset_empties_some_slots_and_no_others(torch: ModuleType, tree: Tree) -> None:
    kept = rows(tree, 0), rows(tree, 2)
    tree.reset(torch.tensor([False, True, False]))
    assert rows(tree, 1) == [0, [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert (rows(tree, 0), rows(tree, 2)) == kept


def test_a_slot_is_copied(tree: Tree) -> None:
    tree.copy_slot(2, 0)
    assert rows(tree, 0) == rows(tree, 2)
    assert rows(tree, 1) == [2, [2.0, 3.0], [2.0, 3.0], [2.0, 3.0]]


def test_what_was_put_away_does_not_change_and_fits_any_slot(tree: Tree) -> None:
    expected = rows(tree, 1)
    saved = tree.save(1)
    tree.copy_slot(0, 1)
    tree.restore(2, saved)
    assert rows(tree, 2) == expected


def test_only_active_slots_are_written(torch: ModuleType, tree: Tree) -> None:
    address = tree.count.data_ptr()
    update(tree.count, torch.tensor([7, 8, 9]), torch.tensor([True, False, True]))
    assert tree.count.tolist() == [7, 2, 9]
    update(tree.count, torch.tensor([4, 5, 6]), None)
    assert tree.count.tolist() == [4, 5, 6]
    assert tree.count.data_ptr() == address


def test_a_size_is_that_of_all_tensors(tree: Tree) -> None:
    assert tree.nbytes() == 3 * 8 + 3 * 6 * 4


def test_a_young_session_is_put_away_small(torch: ModuleType) -> None:
    config = TransformerConfig(d_model=8, num_heads=2, num_layers=2, hidden=8, context=16)
    network = Transformer(config).requires_grad_(False)
    state = network.new_state(2)
    network(torch.ones(2, 3, 8), state)
    young = sum(tensor.nbytes for tensor in state.save(0))
    network(torch.ones(2, 13, 8), state)
    network(torch.ones(2, 1, 8), state)
    old = sum(tensor.nbytes for tensor in state.save(0))
    assert young == 8 + 2 * 2 * 3 * 8 * 4
    assert old == 8 + 2 * 2 * 16 * 8 * 4
