"""Which groups, in what order: pure, without a connection.

ReplayBuffer(url, policy="staleness")
ReplayBuffer(url, policy=Lifo())
"""

from sqlreplay.errors import BadArgument
from sqlreplay.policy.orders import Fifo, Lifo, Staleness
from sqlreplay.policy.plan import Plan, Policy

__all__ = ["Fifo", "Lifo", "Plan", "Policy", "Staleness", "policy_named"]

NAMED: dict[str, type[Policy]] = {"fifo": Fifo, "lifo": Lifo, "staleness": Staleness}


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
        raise BadArgument(
            f"policy is {policy!r}, expected a name ({', '.join(map(repr, NAMED))}) or an object with a method "
            "plan(columns) that returns a Plan."
        )
    return policy
