"""The contract suite: what every database must do, for you to run on yours.

Put this into a test file, with `asyncio_mode = "auto"` in your pytest settings (pytest-asyncio), and run pytest:

    import pytest
    from sqlreplay.testing.contract import FindContract, PutContract, TakeContract

    @pytest.fixture
    def url():
        return "postgresql://replay@db.example/scratch"  # empty at the start of every test

    class TestPut(PutContract): ...
    class TestTake(TakeContract): ...
    class TestFind(FindContract): ...

`DamageContract` also needs a fixture `damage`: an async function that spoils the stored bytes of the group whose uid
it gets. `make_group` and `make_state` build records for tests of your own.
"""

from sqlreplay.testing.factories import make_group, make_state, numbers_of

__all__ = ["make_group", "make_state", "numbers_of"]
