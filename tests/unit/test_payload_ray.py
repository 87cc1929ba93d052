"""Ray ObjectRefs: fetched before the bytes are written, put again when they are read. On a real local Ray."""

import os
import subprocess
import sys

SCRIPT = r"""
import asyncio, sys
import numpy, ray
from sqlreplay import BlockingReplayBuffer, ReplayBuffer, RolloutState, Status

url = sys.argv[1]
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
experts = ray.put(numpy.arange(6).reshape(2, 3))
inner = ray.put("inner")
outer = ray.put({"ref": inner})
state = RolloutState(
    message=[], routed_experts=experts, mm_info={"pixel_values": experts}, status=Status.COMPLETED,
    extra_fields={"a": {"b": [outer]}},
)

async def main():
    async with ReplayBuffer(url) as buffer:
        await buffer.put([state, state.model_copy()], "math")
        del globals()["experts"], globals()["inner"], globals()["outer"]
        batches, _ = await buffer.take_batch({"math": 1})
        first, second = batches["math"][0]
        assert isinstance(first.routed_experts, ray.ObjectRef), first.routed_experts
        assert first.routed_experts == second.routed_experts
        assert ray.get(first.routed_experts).tolist() == [[0, 1, 2], [3, 4, 5]]
        assert ray.get(ray.get(first.extra_fields["a"]["b"][0])["ref"]) == "inner"
        await buffer.put([first], "math")

asyncio.run(main())
ray.shutdown()
with BlockingReplayBuffer(url) as buffer:  # no Ray here any more: the plain value
    [group] = buffer.get(1, "math", "completed")
    assert group[0].routed_experts.tolist() == [[0, 1, 2], [3, 4, 5]]
print("fine")
"""


def test_references_outlive_their_owner(url: str) -> None:
    environment = {**os.environ, "RAY_allow_out_of_band_object_ref_serialization": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, url], capture_output=True, text=True, timeout=110, check=False, env=environment
    )
    assert done.stdout.strip().endswith("fine"), done.stderr[-3000:]
