"""A plan in words: a table for people, JSON for programs."""

from collections.abc import Sequence

import msgspec

from duologue.engines.pipeline.plan import Plan, ProcessPlan


def plan_table(plan: Plan) -> str:
    """The plan as text."""
    lines = [f"deployment {plan.name}: the pipeline {plan.graph.name}", ""]
    rows: list[tuple[str, ...]] = [("stage", "task", "process", "takes", "gives", "sampling")]
    for name, stage in plan.stages.items():
        sampling = ", ".join(
            f"{field} {getattr(stage.sampling, field)}" for field in stage.sampling.given
        )
        rows.append(
            (
                name,
                stage.stage.task,
                stage.process,
                ", ".join(stage.stage.takes),
                ", ".join(stage.stage.gives),
                sampling or "the request's",
            )
        )
    lines += [*_columns(rows), ""]
    rows = [("edge", "kind", "handed on", "window", "connector")]
    for entry in plan.edges:
        edge = entry.edge
        handed = "in chunks" if edge.streamed else "whole"
        if edge.streamed and (edge.first, edge.size) != (1, 1):
            handed += f" of {edge.size}, the first {edge.first}"
        rows.append(
            (
                f"{edge.source} -> {edge.target}",
                str(edge.kind),
                handed,
                str(edge.window),
                entry.connector,
            )
        )
    if companions := plan.graph.companions:
        lines += [f"branches {', '.join(companions.branches)} join at {companions.join}", ""]
    lines += [*_columns(rows), ""]
    rows = [("process", "replica", "stages", "devices", "sessions", "environment")]
    for process in plan.processes:
        for replica in process.replicas:
            environment = " ".join(f"{k}={v}" for k, v in sorted(replica.environment.items()))
            rows.append(
                (
                    process.name,
                    str(replica.number),
                    ", ".join(process.stages),
                    ", ".join(replica.devices),
                    str(process.sessions or "as usual"),
                    environment or "-",
                )
            )
    lines += _columns(rows)
    return "\n".join(lines)


def plan_json(plan: Plan) -> str:
    """The plan as JSON, indented."""
    companions = plan.graph.companions
    tree = {
        "deployment": plan.name,
        "pipeline": plan.graph.name,
        "stages": {
            name: {
                "task": stage.stage.task,
                "process": stage.process,
                "takes": list(stage.stage.takes),
                "gives": list(stage.stage.gives),
                "limits": msgspec.to_builtins(stage.limits),
                "sampling": {
                    field: getattr(stage.sampling, field) for field in stage.sampling.given
                },
            }
            for name, stage in plan.stages.items()
        },
        "edges": [
            {
                "source": entry.edge.source,
                "target": entry.edge.target,
                "kind": entry.edge.kind,
                "streamed": entry.edge.streamed,
                "window": entry.edge.window,
                "first": entry.edge.first,
                "size": entry.edge.size,
                "connector": entry.connector,
            }
            for entry in plan.edges
        ],
        "companions": companions
        and {"join": companions.join, "branches": list(companions.branches)},
        "processes": {process.name: _process(process) for process in plan.processes},
    }
    return msgspec.json.format(msgspec.json.encode(tree), indent=2).decode()


def _process(process: ProcessPlan) -> dict[str, object]:
    return {
        "stages": list(process.stages),
        "sessions": process.sessions,
        "cpus": process.cpus,
        "gpus": process.gpus,
        "replicas": [
            {"devices": list(replica.devices), "environment": dict(replica.environment)}
            for replica in process.replicas
        ],
    }


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
