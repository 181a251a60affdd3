"""What a run was asked to be, where it stands, and what it proves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import Factory, asdict, define, frozen

from dedup.demo.auditing import Audited
from dedup.testing.oracle import Account, Oracle


@frozen
class Wishes:
    """
    What a run is asked to be.
    """

    messages: int
    #: How long the publishers publish, under faults.
    seconds: float
    seed: int
    publishers: int
    with_dedup: bool = True
    #: None takes the default version.
    rabbitmq: str | None = None
    #: Where the audit's page goes; None: there is no audit.
    report: Path | None = None


@define
class Faults:
    """
    What was done to the run so far.
    """

    #: Times that the link swallowed confirms.
    swallowed: int = 0
    #: Times that the link reset every connection.
    resets: int = 0
    #: Processes killed with SIGKILL: shims and standbys.
    kills: int = 0
    #: Times that a kill found a batch begun and not settled.
    kills_in_batch: int = 0


@define
class Progress:
    """
    Where a run stands, for whoever watches.
    """

    wishes: Wishes
    #: What happens now, in words; empty at the end.
    doing: str = "starting RabbitMQ and Redis"
    #: Since the publishers began.
    elapsed_s: float = 0.0
    faults: Faults = Factory(Faults)
    oracle: Oracle = Factory(Oracle)
    servers: str = ""


@frozen
class Outcome:
    """
    What became of a run.
    """

    account: Account
    wishes: Wishes
    faults: Faults
    #: Forwarding was exact: on a broker that lives, nothing may be marked.
    exact: bool
    #: Why it was, or was not.
    forwarding: str
    #: Without the start of the servers.
    seconds: float
    servers: str
    #: What the audit says of the same run; None: it was not asked for.
    audit: Audited | None = None
    #: Why there is no audit although it was asked for.
    audit_missing: str = ""

    @property
    def ok(self) -> bool:
        """
        Whether the run proves what dedup promises.
        """
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """
        What speaks against it, a clause each.
        """
        return (*self._proved_nothing(), *self._broken())

    def _proved_nothing(self) -> Iterator[str]:
        """
        Say why a run without a flaw would prove nothing.
        """
        if self.account.copies <= self.account.messages:
            yield "no message was sent twice, so the run proves nothing: take more --seconds or --messages"
        if self.wishes.with_dedup and not self.faults.kills_in_batch:
            yield "no kill hit a shim inside a batch, so the run proves nothing about crashes: take more --seconds"

    def _broken(self) -> Iterator[str]:
        account = self.account
        if account.confirmed < account.messages:
            yield f"{account.messages - account.confirmed:,} messages were never confirmed"
        if account.lost:
            yield f"{account.lost:,} messages are lost"
        if account.duplicates:
            yield f"{account.duplicates:,} duplicates reached the queue"
        if account.unexpected:
            yield f"{account.unexpected:,} messages are nobody's"
        if account.disordered and self.wishes.with_dedup:
            yield f"{account.disordered:,} messages were overtaken by later ones of their publisher"
        if account.marked and self.exact:
            yield f"{account.marked:,} messages are marked as possible duplicates although the broker was well"
        if account.quarantined:
            yield f"{account.quarantined:,} messages are in quarantine"
        if self.audit is not None and self.audit.verdict != "clean":
            yield f"the audit says {self.audit.verdict}: {self.audit.failed}"

    @property
    def sentence(self) -> str:
        """
        What the run proves, in one sentence.
        """
        account, faults = self.account, self.faults
        repeated = account.copies - account.messages
        if self.ok:
            promise = "Every message is in the queue exactly once and in order"
            if account.marked:
                promise = f"No message is lost, and none is there twice without a mark ({self.forwarding})"
            return (
                f"{promise}, although {repeated:,} repeated copies arrived and shims were killed with -9 "
                f"{faults.kills} times, {faults.kills_in_batch} times inside a batch."
            )
        told = "; ".join(self.failures)
        if not self.wishes.with_dedup and account.duplicates and not account.lost:
            return f"Without dedup the same faults did this: {told}. This is the control; it is expected to fail."
        return f"FAILED: {told}."

    def as_dict(self) -> dict[str, Any]:
        """
        Return all of it for machines.
        """
        return {
            "ok": self.ok,
            "dedup": self.wishes.with_dedup,
            "seed": self.wishes.seed,
            "publishers": self.wishes.publishers,
            **asdict(self.account),
            "faults": asdict(self.faults),
            "exact": self.exact,
            "forwarding": self.forwarding,
            "seconds": round(self.seconds, 1),
            "servers": self.servers,
            "audit": None if self.audit is None else {**asdict(self.audit), "page": str(self.audit.page)},
            "failures": list(self.failures),
            "sentence": self.sentence,
        }
