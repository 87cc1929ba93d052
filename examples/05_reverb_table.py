"""Tables as Reverb has them: a queue that holds its producer back, and a replay that keeps samples and inserts in step.

A table is a task of the database, so the threads here could as well be processes on several machines.

Prints:
    the producer waits at 4 prompts
    The group could not go in within 0.05 s and was not stored.
    table 'prompts': Queue(size=4) would stand at 5 inserts * 1 - 0 samples = 5, above 4: it waits for samples.
    12 prompts, from 'question 0' to 'question 11'; 0 are left
    20 samples, in step with the inserts: True
    the actor was told to stop
    a sample after that is None
"""

import tempfile
import threading
import time

from sqlreplay import Fifo, PutTimeout, SampleToInsertRatio, StoreClosed, Table, Uniform


def queue(url: str) -> None:
    """Each prompt is sampled once, the oldest first; a fifth one waits until there is room."""
    with Table.queue(url, "prompts", max_size=4) as prompts:

        def produce() -> None:
            for number in range(12):
                prompts.insert(number, f"question {number}")

        producer = threading.Thread(target=produce)
        producer.start()
        while prompts.can_insert():
            time.sleep(0.01)
        print("the producer waits at", len(prompts), "prompts")
        try:
            prompts.insert(12, "one more", timeout=0.05)
        except PutTimeout as error:
            print(str(error).replace(". ", ".\n"))

        order = [data for _ in range(4) for data, _ in prompts.sample(3, timeout=10) or []]
        producer.join()
        print(f"{len(order)} prompts, from {order[0]!r} to {order[-1]!r}; {len(prompts)} are left")


def replay(url: str) -> None:
    """Each episode is sampled twice on average; whoever is ahead waits, until the table is shut down."""
    ratio = SampleToInsertRatio(samples_per_insert=2, min_size_to_sample=2, error_buffer=4)
    with Table(url, "episodes", Uniform(), Fifo(), max_size=100, max_times_sampled=0, rate_limiter=ratio) as episodes:

        def act() -> None:
            number = 0
            try:
                while True:
                    episodes.insert(number, {"tokens": [number] * 8})
                    number += 1
            except StoreClosed:
                print("the actor was told to stop")

        actor = threading.Thread(target=act)
        actor.start()
        in_step = True
        for _ in range(10):
            batch = episodes.sample(2, timeout=10) or []
            info = episodes.info
            in_step &= len(batch) == 2 and ratio.min_diff <= 2 * info.inserts - info.samples <= ratio.max_diff
        print(f"{info.samples} samples, in step with the inserts: {in_step}")
        episodes.shutdown()
        actor.join()
        print("a sample after that is", episodes.sample())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        queue(f"sqlite:///{folder}/replay.db")
        replay(f"sqlite:///{folder}/replay.db")
