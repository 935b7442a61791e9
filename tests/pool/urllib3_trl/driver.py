"""Runs inside the environment: two batches of 64 conversations by TRL's client, on an adapter of a given size.

python driver.py URL POOL_MAXSIZE        0 leaves the adapter that the client mounts itself
"""

from __future__ import annotations

import sys
from typing import Any

from trl.generation import vllm_client

# The client asks whether vLLM is installed here before it talks to one elsewhere. It was imported without.
vllm_client.is_vllm_available = lambda *_args, **_kwargs: True

BATCHES = 2
CONVERSATIONS = 64


class Client(vllm_client.VLLMClient):
    """TRL's client; a synthetic engine answers in words, so the token ids are added to its answers."""

    def _post(self, url: str, **kwargs: Any) -> dict[str, Any]:
        answer = super()._post(url, **kwargs)
        answer["prompt_token_ids"] = []
        for choice in answer["choices"]:
            choice["token_ids"], choice["logprobs"] = [], None
        return answer


def main(url: str, pool_maxsize: int) -> None:
    client = Client(base_url=url)
    if pool_maxsize:
        retries = client.session.get_adapter(url).max_retries
        adapter = vllm_client.HTTPAdapter(max_retries=retries, pool_maxsize=pool_maxsize)
        client.session.mount("http://", adapter)
    conversation = [{"role": "user", "content": "What waits here?"}]
    for _ in range(BATCHES):
        answers = client.chat([conversation] * CONVERSATIONS, logprobs=None)
        assert len(answers["completion_ids"]) == CONVERSATIONS


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
