"""Twelve processes on one store: nothing lost, nothing twice, and no lock error reaches a caller."""

from pathlib import Path

from workers import finish, logged, start, stored

TASKS = ["math", "code", "chat"]
PRODUCERS, PUTS_OF_A_PRODUCER = 4, 450
CONSUMERS, PUTS_OF_A_CONSUMER = 8, 25


def test_every_group_is_taken_by_one_process(url: str, tmp_path: Path, random_seed: int) -> None:
    stop = tmp_path / "stop"
    produced = PRODUCERS * PUTS_OF_A_PRODUCER
    consumers = [
        start(
            "mix",
            url=url,
            log=str(tmp_path / f"taken {index}"),
            put_log=str(tmp_path / f"put by consumer {index}"),
            numbers=[produced + index * PUTS_OF_A_CONSUMER + i for i in range(PUTS_OF_A_CONSUMER)],
            tasks=TASKS,
            stop=str(stop),
            seed=random_seed + index,
        )
        for index in range(CONSUMERS)
    ]
    producers = [
        start(
            "produce",
            url=url,
            log=str(tmp_path / f"put by producer {index}"),
            numbers=list(range(index * PUTS_OF_A_PRODUCER, (index + 1) * PUTS_OF_A_PRODUCER)),
            tasks=TASKS,
        )
        for index in range(PRODUCERS)
    ]
    try:
        finish(producers)
    finally:
        stop.touch()
        finish(consumers)

    put = [number for path in tmp_path.glob("put by *") for number in logged(path)]
    taken = [number for path in tmp_path.glob("taken *") for number in logged(path)]
    left = stored(url)
    assert sorted(put) == list(range(produced + CONSUMERS * PUTS_OF_A_CONSUMER))
    assert sorted(taken + left) == sorted(put)
    takers = [path for path in tmp_path.glob("taken *") if logged(path)]
    assert len(takers) > 1, "one process took everything, so this run showed nothing"
