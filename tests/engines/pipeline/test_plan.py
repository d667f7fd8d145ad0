import json
from pathlib import Path

import pytest

from duologue.engines.pipeline.deployment import DeploymentError, read_deployment
from duologue.engines.pipeline.plan import Machine, Plan, find_machine, resolve
from duologue.engines.pipeline.plan_report import plan_json, plan_table
from duologue.engines.pipeline.stage_graph import (
    GRAPHS,
    Companions,
    Edge,
    Graph,
    GraphError,
    Kind,
    Stage,
)

SMALL = Machine(2)
LARGE = Machine(16, (0, 1))
VOICES = "[stages.tts]\nprocess = 'voices'\n"


def plan(text: str, machine: Machine = SMALL, cluster: bool = False) -> Plan:
    return resolve(read_deployment(text), machine, cluster=cluster)


def test_by_default_everything_runs_in_one_process() -> None:
    resolved = plan("")
    (process,) = resolved.processes
    assert process.stages == ("asr", "llm", "tts")
    assert len(process.replicas) == 1
    assert not process.replicas[0].environment
    assert {edge.connector for edge in resolved.edges} == {"in process"}
    assert resolved.answer_s == {}


def test_a_stage_in_a_process_of_its_own_is_reached_over_lanes() -> None:
    resolved = plan(VOICES + "replicas = 2\nenvironment = { A = '1' }")
    main, voices = resolved.processes
    assert (main.stages, voices.stages) == (("asr", "llm"), ("tts",))
    assert [replica.environment for replica in voices.replicas] == [{"A": "1"}] * 2
    assert [edge.connector for edge in resolved.edges] == ["in process", "lanes"]
    assert resolved.answer_s == {"tts": 20.0}


def test_gpus_are_dealt_to_replicas_that_see_no_others() -> None:
    resolved = plan(VOICES + "replicas = 2\ndevices = ['cuda:1', 'cuda:0']", LARGE)
    seen = [one.environment["CUDA_VISIBLE_DEVICES"] for one in resolved.processes[1].replicas]
    assert seen == ["1", "0"]
    (all_of_them,) = plan("[stages.llm]\ndevices = ['cuda:0', 'cuda:1']", LARGE).processes
    assert all_of_them.replicas[0].environment == {"CUDA_VISIBLE_DEVICES": "0,1"}


def test_a_process_that_asks_for_the_cpu_sees_no_gpu() -> None:
    resolved = plan(VOICES + "devices = ['cpu']", LARGE)
    assert resolved.processes[1].replicas[0].environment == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_gpu_can_be_shared_by_shares_of_its_memory() -> None:
    shared = (
        VOICES + "devices = ['cuda:0']\nlimits = { memory = 0.2 }\n"
        "[stages.llm]\ndevices = ['cuda:0']\nlimits = { memory = 0.8 }"
    )
    assert len(plan(shared, LARGE).processes) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[stages.x]", "stages.x: cascade has no such stage; it has asr, llm, tts"),
        ("pipeline = 'x'", "pipeline: there is no 'x'"),
        ("[stages.llm]\nprocess = 'a'", "stages.llm.process: llm runs in 'main'"),
        ("[stages.tts]\nprocess = 'A B'", "stages.tts.process: 'A B' is not 1 to 32"),
        (
            "[stages.asr]\nreplicas = 2\n[stages.llm]\nreplicas = 3",
            "stages.llm.replicas: 3, but asr of the same process 'main' has 2",
        ),
        (
            "[stages.asr.environment]\nA = '1'\n[stages.llm.environment]\nA = '2'",
            "stages.llm.environment.A: another value than in the same process 'main'",
        ),
        (
            "[stages.tts.sampling]\ntop_p = 0.5",
            "stages.tts.sampling.top_p: tts takes none",
        ),
        (VOICES + "replicas = 65", "stages.tts.replicas: 65 is not at most 64"),
        (VOICES + "devices = []", "stages.tts.devices: there is none"),
        (VOICES + "devices = ['gpu']", "stages.tts.devices: 'gpu' is neither cpu nor cuda:N"),
        (
            VOICES + "devices = ['cuda:2']",
            "stages.tts.devices: there is no cuda:2; this machine has cpu, cuda:0, cuda:1",
        ),
        (
            VOICES + "devices = ['cuda:0', 'cuda:0']",
            "stages.tts.devices: cuda:0 is there twice",
        ),
        (VOICES + "devices = ['cpu', 'cuda:0']", "stages.tts.devices: cpu beside cuda:0"),
        (
            VOICES + "devices = ['cuda:0', 'cuda:1']\nreplicas = 3",
            "stages.tts.devices: 2 can't be dealt to 3 replicas",
        ),
        (
            VOICES + "devices = ['cuda:0']\n[stages.llm]\ndevices = ['cuda:0']",
            "stages.tts.devices: cuda:0 is taken 2 times (llm 1, tts 1)",
        ),
        (
            VOICES + "devices = ['cuda:0']\nreplicas = 3\nlimits = { memory = 0.5 }",
            "stages.tts.devices: cuda:0 is taken 1.5 times (tts 1.5)",
        ),
        (
            "[stages.asr]\ndevices = ['cuda:0']\n[stages.llm]\ndevices = ['cuda:1']",
            "stages.llm.devices: cuda:1, but asr of the same process 'main' has cuda:0",
        ),
    ],
)
def test_what_can_not_be_is_told_with_its_field(text: str, words: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        plan(text, LARGE)
    assert str(caught.value).startswith(words)


def test_in_a_cluster_the_devices_are_the_clusters_to_find() -> None:
    resolved = plan("[stages.llm]\ndevices = ['cuda:5']\nlimits = { cpus = 4 }", SMALL, True)
    assert (resolved.main.cpus, resolved.main.gpus) == (4, 1.0)
    assert "CUDA_VISIBLE_DEVICES" not in resolved.main.replicas[0].environment


def test_the_machine_is_found_by_its_device_files(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert find_machine({}, tmp_path).devices == ("cpu", "cuda:0", "cuda:1")
    assert find_machine({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path).gpus == (0,)
    assert find_machine({"CUDA_VISIBLE_DEVICES": ""}, tmp_path).gpus == ()
    assert find_machine({}, tmp_path / "nothing").gpus == ()


# -- graphs ---------------------------------------------------------------------------------

A = Stage(name="a", task="", takes=(Kind.PROMPT,), gives=(Kind.TOKENS,))
B = Stage(name="b", task="", takes=(Kind.TOKENS,), gives=(Kind.TOKENS, Kind.SPEECH))
C = Stage(name="c", task="", takes=(Kind.TOKENS,), gives=(Kind.SPEECH,))
AB = Edge(source="a", target="b", kind=Kind.TOKENS)


@pytest.mark.parametrize(
    ("stages", "edges", "companions", "words"),
    [
        ((), (), None, "graphs.g.stages: there is none"),
        ((A, A), (), None, "graphs.g.stages: two are called 'a'"),
        (
            (A,),
            (AB,),
            None,
            "graphs.g.edges[0].target: there is no stage 'b'",
        ),
        (
            (A, B),
            (Edge(source="a", target="b", kind=Kind.SPEECH),),
            None,
            "graphs.g.edges[0].kind: a gives tokens, not speech",
        ),
        (
            (B, C),
            (Edge(source="b", target="c", kind=Kind.SPEECH),),
            None,
            "graphs.g.edges[0].kind: c takes tokens, not speech",
        ),
        (
            (A, B),
            (Edge(source="a", target="b", kind=Kind.TOKENS, window=0),),
            None,
            "graphs.g.edges[0].window: 0 is not at least 1",
        ),
        ((A, B), (AB, AB), None, "graphs.g.edges[0]: a second edge of tokens"),
        (
            (B, C, Stage(name="d", task="", takes=(Kind.TOKENS,), gives=(Kind.TOKENS,))),
            (
                Edge(source="b", target="d", kind=Kind.TOKENS),
                Edge(source="d", target="b", kind=Kind.TOKENS),
            ),
            None,
            "graphs.g.edges: a cycle through b, d",
        ),
        ((A, B), (AB,), Companions(join="x"), "graphs.g.companions.join: there is no stage 'x'"),
        ((A, B), (AB,), Companions(join="a"), "graphs.g.companions.join: nothing comes before"),
        (
            (A, B),
            (AB,),
            Companions(join="b", branches=("one",)),
            "graphs.g.companions.branches: two of different names",
        ),
        (
            (A, B, C),
            (AB, Edge(source="a", target="c", kind=Kind.TOKENS)),
            Companions(join="b"),
            "graphs.g.edges[1].target: 'c' takes from a branch",
        ),
    ],
)
def test_a_graph_that_can_not_run_is_refused(
    stages: tuple[Stage, ...],
    edges: tuple[Edge, ...],
    companions: Companions | None,
    words: str,
) -> None:
    with pytest.raises(GraphError) as caught:
        Graph("g", stages, edges, companions)
    assert str(caught.value).startswith(words)


# -- reports --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph_has_a_plan_that_can_be_read(name: str) -> None:
    resolved = resolve(read_deployment(""), SMALL, pipeline=name)
    assert name in plan_table(resolved)
    assert json.loads(plan_json(resolved))["pipeline"] == name


def test_the_report_tells_where_stages_run_and_what_connects_them() -> None:
    resolved = plan(VOICES + "replicas = 2\n[stages.llm.sampling]\nseed = 7")
    table = plan_table(resolved)
    assert "llm -> tts  clause  in chunks  4       lanes" in table
    assert "voices   1        tts" in table
    assert "seed 7" in table
    tree = json.loads(plan_json(resolved))
    assert tree["stages"]["tts"]["process"] == "voices"
    assert len(tree["processes"]["voices"]["replicas"]) == 2
