"""Clients of the batch lane that always want more: ``python -m load_tests.saturate URL ...``."""

import json
import os
import sys

import anyio
import httpx

QUESTION = "Tell me a long story about the sea, please, with many details. This is client {}."
TOKENS = 120


async def saturate(url: str, key: str, clients: int, seconds: float) -> dict[str, int]:
    """Ask for chat completions without a pause for so long; how many came, and were refused."""
    counts = {"completed": 0, "refused": 0, "failed": 0}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, trust_env=False, timeout=seconds + 60, limits=limits
    ) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]

        async def ask(number: int) -> None:
            while True:
                message = {"role": "user", "content": QUESTION.format(number)}
                body = {"model": model, "messages": [message], "max_tokens": TOKENS}
                try:
                    answer = await http.post("/v1/chat/completions", json=body)
                except httpx.TransportError:
                    counts["failed"] += 1
                    await anyio.sleep(0.1)
                    continue
                if answer.status_code == 200:
                    counts["completed"] += 1
                elif answer.status_code in (429, 503):
                    counts["refused"] += 1
                    await anyio.sleep(min(2.0, float(answer.headers.get("retry-after", 1))))
                else:
                    counts["failed"] += 1
                    await anyio.sleep(1.0)

        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as group:
                for number in range(clients):
                    group.start_soon(ask, number)
    return counts


if __name__ == "__main__":
    os.nice(10)  # where it counts, clients are other machines
    url, key, clients, seconds = sys.argv[1:]
    found = anyio.run(saturate, url, key, int(clients), float(seconds))
    sys.stdout.write(json.dumps(found) + "\n")
