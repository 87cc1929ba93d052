"""Ray ObjectRefs at the codec: collected without blocking, fetched once each, and put again where Ray runs."""

import os
import subprocess
import sys

WRITE = r"""
import pickle, sys
import numpy, ray
from sqlreplay.errors import PayloadUnsupported
from sqlreplay.payload import Codec
sys.path.insert(0, sys.argv[2])
from test_payload_refs import Sample

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
fetched = []
get = ray.get
ray.get = lambda refs, **options: fetched.append(list(refs)) or get(refs, **options)

experts = ray.put(numpy.arange(6, dtype="u1").reshape(2, 3))
inner = ray.put("inner \ud800")
middle = ray.put({"again": inner, "more": [inner], "experts": experts})
outer = ray.put((middle, inner))
group = [
    Sample({"pixels": experts}, [experts, outer]),
    Sample({"nested": [(middle,)]}, None),
]
codec = Codec(Sample, response_fields={"response"})
pending = codec.prepare(group, [1, 2])
assert fetched == []
assert set(pending.refs) == {experts, middle, outer}, pending.refs
assert len(pending.refs) == 3
parts = pending.finish()
assert [len(refs) for refs in fetched] == [3, 1], fetched
assert parts == codec.prepare(group, [1, 2]).finish(get(pending.refs))
assert numpy.arange(6, dtype="u1").tobytes() in parts[0].body
assert numpy.arange(6, dtype="u1").tobytes() not in parts[1].body

for with_response in (True, False):
    first, second = codec.decode(parts if with_response else parts[:1], with_response=with_response).items
    read = first.prompt["pixels"]
    assert isinstance(read, ray.ObjectRef)
    assert read != experts
    assert get(read).tolist() == [[0, 1, 2], [3, 4, 5]]
    nested = get(second.prompt["nested"][0][0])
    assert get(nested["again"]) == "inner \ud800"
    assert nested["again"] == nested["more"][0]
    assert nested["experts"] == read
    if with_response:
        assert first.response[0] == read
        assert get(get(first.response[1])[0])["again"] == nested["again"]

[keyed] = codec.decode(codec.encode([Sample({inner: "as a key"}, None)])).items
assert [get(key) for key in keyed.prompt] == ["inner \ud800"]

def refused(group, text):
    try:
        codec.encode(group)
    except PayloadUnsupported as error:
        assert text in str(error), error
    else:
        raise AssertionError("not refused")

refused([Sample(ray.put({"deep": [print]}), None)], ">.deep[0]: a value of type")

@ray.remote
def fail():
    raise RuntimeError("no such tool")

refused([Sample(fail.remote(), None)], "no such tool")
deep = ray.put(1)
for _ in range(150):
    deep = ray.put([deep])
[sample] = codec.decode(codec.encode([Sample(deep, None)])).items
depth, value = 0, get(sample.prompt)
while isinstance(value, list):
    depth, value = depth + 1, get(value[0])
assert (depth, value) == (150, 1)

lonely = [Sample(ray.put(1), None)]
ray.shutdown()
refused(lonely, "Ray is not running")
assert not ray.is_initialized()
[first, second] = codec.decode(parts).items
assert first.response[0].tolist() == [[0, 1, 2], [3, 4, 5]]
assert not ray.is_initialized()
with open(sys.argv[1], "wb") as file:
    pickle.dump([tuple(part) for part in parts], file)
print("written")
"""

READ = r"""
import pickle, sys
from sqlreplay.payload import Codec, Part
sys.path.insert(0, sys.argv[2])
from test_payload_refs import Sample

with open(sys.argv[1], "rb") as file:
    parts = [Part(*part) for part in pickle.load(file)]
first, second = Codec(Sample, response_fields={"response"}).decode(parts).items
assert first.prompt["pixels"].tolist() == first.response[0].tolist() == [[0, 1, 2], [3, 4, 5]]
assert first.response[1][0]["again"] == "inner \ud800"
assert second.prompt["nested"][0][0]["more"] == ["inner \ud800"]
assert "ray" not in sys.modules
print("read")
"""


class Sample:
    def __init__(self, prompt: object, response: object) -> None:
        self.prompt = prompt
        self.response = response


def run(script: str, *arguments: str) -> str:
    environment = {**os.environ, "RAY_allow_out_of_band_object_ref_serialization": "0", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    return done.stdout.strip() or done.stderr[-3000:]


def test_references_are_values_in_the_bytes(tmp_path: object) -> None:
    """The second process has no Ray: it gets the values themselves."""
    arguments = (f"{tmp_path}/parts", os.path.dirname(__file__))
    assert run(WRITE, *arguments).endswith("written")
    assert run(READ, *arguments) == "read"
