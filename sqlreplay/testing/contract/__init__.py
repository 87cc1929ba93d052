"""The contract, one class for each topic: subclass them with a fixture `url`, as `sqlreplay.testing` shows."""

from sqlreplay.testing.contract.bad_input import BadInputContract
from sqlreplay.testing.contract.blocking import BlockingContract
from sqlreplay.testing.contract.capacity import CapacityContract, RunCapacityContract
from sqlreplay.testing.contract.concurrency import CancellationContract, ConcurrencyContract
from sqlreplay.testing.contract.counts import CountContract
from sqlreplay.testing.contract.damage import DamageContract
from sqlreplay.testing.contract.expiry import PutExpiryContract
from sqlreplay.testing.contract.limiters import RateLimiterContract, SampleWaitContract
from sqlreplay.testing.contract.measures import MeasuresContract, MixedSampleContract, PriorityContract
from sqlreplay.testing.contract.mending import MendingContract
from sqlreplay.testing.contract.payloads import PayloadContract
from sqlreplay.testing.contract.policies import PolicyContract
from sqlreplay.testing.contract.puts import PutContract
from sqlreplay.testing.contract.queries import FindContract
from sqlreplay.testing.contract.refreshes import RefreshContract
from sqlreplay.testing.contract.runs import RunContract
from sqlreplay.testing.contract.sampling import SampleContract, SampleDamageContract, SampleOrderContract
from sqlreplay.testing.contract.staleness import StalenessContract
from sqlreplay.testing.contract.tables import TableContract, TableSettingsContract, TableShutdownContract
from sqlreplay.testing.contract.takes import TakeContract, TokenBudgetContract
from sqlreplay.testing.contract.waits import WaitContract

__all__ = [
    "BadInputContract",
    "BlockingContract",
    "CancellationContract",
    "CapacityContract",
    "ConcurrencyContract",
    "CountContract",
    "DamageContract",
    "FindContract",
    "MeasuresContract",
    "MendingContract",
    "MixedSampleContract",
    "PayloadContract",
    "PolicyContract",
    "PriorityContract",
    "PutContract",
    "PutExpiryContract",
    "RateLimiterContract",
    "RefreshContract",
    "RunCapacityContract",
    "RunContract",
    "SampleContract",
    "SampleDamageContract",
    "SampleOrderContract",
    "SampleWaitContract",
    "StalenessContract",
    "TableContract",
    "TableSettingsContract",
    "TableShutdownContract",
    "TakeContract",
    "TokenBudgetContract",
    "WaitContract",
]
