"""Which groups, in what order: pure, without a connection.

ReplayBuffer(url, policy="staleness")
TableConfig(sampler=Prioritized(0.6), remover=Fifo())
"""

from typing import Any

from sqlreplay.errors import BadArgument
from sqlreplay.policy.lots import Prioritized, Uniform
from sqlreplay.policy.orders import Fifo, Lifo, MaxHeap, MinHeap, Staleness, whole_key
from sqlreplay.policy.plan import Plan, Policy

__all__ = [
    "SELECTORS",
    "Fifo",
    "Lifo",
    "MaxHeap",
    "MinHeap",
    "Plan",
    "Policy",
    "Prioritized",
    "Selector",
    "Staleness",
    "Uniform",
    "policy_named",
    "selector_named",
    "whole_key",
]

Selector = Fifo | Lifo | MaxHeap | MinHeap | Prioritized | Staleness | Uniform
NAMED: dict[str, type[Policy]] = {"fifo": Fifo, "lifo": Lifo, "staleness": Staleness}
SELECTORS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Staleness, Uniform)
}


def policy_named(policy: str | Policy) -> Policy:
    """Return the policy of a name, or a policy object as it is."""
    if isinstance(policy, str):
        if policy not in NAMED:
            raise BadArgument(
                f"policy={policy!r} is unknown. Type one of {', '.join(map(repr, NAMED))}, or give an object with a "
                "method plan(columns)."
            )
        return NAMED[policy]()
    if not isinstance(policy, Policy) or isinstance(policy, type):
        hint = (
            ""
            if not isinstance(policy, (Prioritized, Uniform))
            else (f" To draw by lot, type tables={{'math': TableConfig(sampler={policy!r})}} and call sample().")
        )
        raise BadArgument(
            f"policy is {policy!r}, expected a name ({', '.join(map(repr, NAMED))}) or an object with a method "
            f"plan(columns) that returns a Plan.{hint}"
        )
    return policy


def selector_named(role: str, selector: Any) -> Selector:
    """Return the selector of a name, or one of ours as it is: a table's must mean the same in every process."""
    by_name = {name.lower(): kind for name, kind in SELECTORS.items()}
    if isinstance(selector, str) and selector.lower() in by_name and selector.lower() != "prioritized":
        selector = by_name[selector.lower()]()
    if type(selector) not in SELECTORS.values():
        raise BadArgument(
            f"{role} is {selector!r}, expected one of {', '.join(f'{name}()' for name in SELECTORS)}; "
            "Prioritized takes an exponent, such as Prioritized(0.6)."
        )
    found: Selector = selector
    return found
