import random

import pytest


@pytest.fixture
def random_seed() -> int:
    """A seed of this run's own, shown when the test fails."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"random_seed = {seed}")
    return seed
