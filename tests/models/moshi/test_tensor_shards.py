"""What the ranks of a transformer read, and that together it is all of it."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")
pytest.importorskip("safetensors", reason="safetensors comes with duologue[moshi]")

from safetensors.torch import save_file

from duologue.models.moshi.moshi_config import TransformerConfig
from duologue.models.moshi.tensor_shards import Shard, read_shard

CONFIG = TransformerConfig(
    d_model=8, num_heads=4, num_layers=1, hidden=6, context=4, kv_repeat=2, shards=2
)
DIM, NARROW, HIDDEN = 8, 4, 6


def counted(torch: ModuleType, rows: int, columns: int) -> Any:
    return torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)


def ranks(folder: Path, tensors: dict[str, Any]) -> list[dict[str, Any]]:
    save_file(tensors, folder / "model.safetensors")
    return [
        read_shard((folder / "model.safetensors",), CONFIG, Shard(rank, 2), "cpu")
        for rank in range(2)
    ]


def test_each_rank_has_its_heads_of_queries_keys_and_values(
    torch: ModuleType, tmp_path: Path
) -> None:
    name = "transformer.layers.0.self_attn.in_proj_weight"
    whole = counted(torch, DIM + 2 * NARROW, DIM)
    queries, keys, values = whole.split([DIM, NARROW, NARROW])
    first, second = ranks(tmp_path, {name: whole})
    assert (first[name] == torch.cat([queries[:4], keys[:2], values[:2]])).all()
    assert (second[name] == torch.cat([queries[4:], keys[2:], values[2:]])).all()


@pytest.mark.parametrize(
    "name",
    [
        "transformer.layers.0.gating.linear_in.weight",
        "decoder.model.layers.0.mlp.fc1.weight",
    ],
)
def test_each_rank_has_a_part_of_the_gate_and_of_what_it_lets_through(
    torch: ModuleType, tmp_path: Path, name: str
) -> None:
    whole = counted(torch, 2 * HIDDEN, DIM)
    first, second = ranks(tmp_path, {name: whole})
    assert (first[name] == torch.cat([whole[:3], whole[6:9]])).all()
    assert (second[name] == torch.cat([whole[3:6], whole[9:]])).all()


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("transformer.layers.0.self_attn.out_proj.weight", DIM),
        ("transformer.layers.0.self_attn.out_projs.0.weight", DIM),
        ("decoder.model.layers.0.self_attn.o_proj.linear.weight", DIM),
        ("transformer.layers.0.gating.linear_out.weight", HIDDEN),
        ("transformer.layers.0.linear2.weight", HIDDEN),
        ("decoder.model.layers.0.mlp.fc2.weight", HIDDEN),
    ],
)
def test_what_takes_up_the_parts_is_split_by_columns(
    torch: ModuleType, tmp_path: Path, name: str, columns: int
) -> None:
    whole = counted(torch, DIM, columns)
    first, second = ranks(tmp_path, {name: whole})
    assert (torch.cat([first[name], second[name]], dim=1) == whole).all()
    assert first[name].shape == (DIM, columns // 2)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("decoder.model.layers.0.self_attn.q_proj.linear.weight", DIM),
        ("decoder.model.layers.0.self_attn.k_proj.linear.weight", NARROW),
        ("transformer.layers.0.linear1.weight", HIDDEN),
    ],
)
def test_what_makes_one_kind_of_channels_is_split_by_rows(
    torch: ModuleType, tmp_path: Path, name: str, rows: int
) -> None:
    whole = counted(torch, rows, DIM)
    first, second = ranks(tmp_path, {name: whole})
    assert (torch.cat([first[name], second[name]]) == whole).all()


def test_norms_are_everybodys_and_the_rest_is_the_firsts(torch: ModuleType, tmp_path: Path) -> None:
    norm = "transformer.layers.0.norm1.alpha"
    others = ["text_emb.weight", "depformer.layers.0.self_attn.in_proj_weight", "out_norm.alpha"]
    tensors = {name: counted(torch, 3, 5) for name in (norm, *others)}
    first, second = ranks(tmp_path, tensors)
    assert set(first) == set(tensors)
    assert set(second) == {norm}
    assert all((first[name] == tensors[name]).all() for name in tensors)


def test_a_tensor_of_another_size_is_not_shared_out(torch: ModuleType, tmp_path: Path) -> None:
    name = "transformer.layers.0.gating.linear_out.weight"
    with pytest.raises(ValueError, match=r"linear_out.weight is of the shape \[8, 5\]"):
        ranks(tmp_path, {name: counted(torch, DIM, 5)})


@pytest.mark.parametrize(("rank", "ranks_"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_is_one_of_those_there_are(rank: int, ranks_: int) -> None:
    with pytest.raises(ValueError, match="rank"):
        Shard(rank, ranks_)
