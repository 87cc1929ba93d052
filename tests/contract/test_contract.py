"""The contract suite on both databases."""

from sqlreplay.testing import contract
from sqlreplay.testing.contract import (
    BadInputContract,
    BlockingContract,
    CancellationContract,
    CapacityContract,
    ConcurrencyContract,
    CountContract,
    DamageContract,
    FindContract,
    MeasuresContract,
    MendingContract,
    MixedSampleContract,
    PayloadContract,
    PolicyContract,
    PriorityContract,
    PutContract,
    PutExpiryContract,
    RateLimiterContract,
    RefreshContract,
    RunCapacityContract,
    RunContract,
    SampleContract,
    SampleDamageContract,
    SampleOrderContract,
    SampleWaitContract,
    StalenessContract,
    TableContract,
    TableSettingsContract,
    TableShutdownContract,
    TakeContract,
    TokenBudgetContract,
    WaitContract,
)


class TestBadInput(BadInputContract): ...


class TestBlocking(BlockingContract): ...


class TestCancellation(CancellationContract): ...


class TestCapacity(CapacityContract): ...


class TestConcurrency(ConcurrencyContract): ...


class TestCount(CountContract): ...


class TestDamage(DamageContract): ...


class TestFind(FindContract): ...


class TestMeasures(MeasuresContract): ...


class TestMending(MendingContract): ...


class TestMixedSample(MixedSampleContract): ...


class TestPayload(PayloadContract): ...


class TestPolicy(PolicyContract): ...


class TestPriority(PriorityContract): ...


class TestPut(PutContract): ...


class TestPutExpiry(PutExpiryContract): ...


class TestRateLimiter(RateLimiterContract): ...


class TestRefresh(RefreshContract): ...


class TestRunCapacity(RunCapacityContract): ...


class TestRun(RunContract): ...


class TestSample(SampleContract): ...


class TestSampleDamage(SampleDamageContract): ...


class TestSampleOrder(SampleOrderContract): ...


class TestSampleWait(SampleWaitContract): ...


class TestStaleness(StalenessContract): ...


class TestTable(TableContract): ...


class TestTableSettings(TableSettingsContract): ...


class TestTableShutdown(TableShutdownContract): ...


class TestTake(TakeContract): ...


class TestTokenBudget(TokenBudgetContract): ...


class TestWait(WaitContract): ...


def test_every_part_of_the_contract_runs_here() -> None:
    run = {base for kind in globals().values() if isinstance(kind, type) for base in kind.__bases__}
    assert {getattr(contract, name) for name in contract.__all__} <= run
