"""The contract suite on both databases."""

from sqlreplay.testing import contract
from sqlreplay.testing.contract import (
    BadInputContract,
    BlockingContract,
    CancellationContract,
    ConcurrencyContract,
    CountContract,
    DamageContract,
    FindContract,
    MendingContract,
    PayloadContract,
    PolicyContract,
    PutContract,
    PutExpiryContract,
    RefreshContract,
    RunContract,
    StalenessContract,
    TakeContract,
    TokenBudgetContract,
    WaitContract,
)


class TestBadInput(BadInputContract): ...


class TestBlocking(BlockingContract): ...


class TestCancellation(CancellationContract): ...


class TestConcurrency(ConcurrencyContract): ...


class TestCount(CountContract): ...


class TestDamage(DamageContract): ...


class TestFind(FindContract): ...


class TestMending(MendingContract): ...


class TestPayload(PayloadContract): ...


class TestPolicy(PolicyContract): ...


class TestPut(PutContract): ...


class TestPutExpiry(PutExpiryContract): ...


class TestRefresh(RefreshContract): ...


class TestRun(RunContract): ...


class TestStaleness(StalenessContract): ...


class TestTake(TakeContract): ...


class TestTokenBudget(TokenBudgetContract): ...


class TestWait(WaitContract): ...


def test_every_part_of_the_contract_runs_here() -> None:
    run = {base for kind in globals().values() if isinstance(kind, type) for base in kind.__bases__}
    assert {getattr(contract, name) for name in contract.__all__} <= run
