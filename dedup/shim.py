"""Forward one guarded queue: run one session after the other until asked to stop."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from attrs import evolve, field, frozen

from dedup.amqp091.driver import Ended, Outcome
from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.session import Observer, Session
from dedup.core import names, steps
from dedup.core.backoff import delay_s
from dedup.core.records import Leadership
from dedup.core.relay import Relay
from dedup.core.settings import RelaySettings
from dedup.errors import ConfigError, DedupError, StateFormatError, TopologyError
from dedup.protocols import BUILT_IN, session_type
from dedup.store.client import KEY_PREFIX
from dedup.store.redis import RedisStore

#: Sessions that the broker ends by closing the channel on a publish before batches shrink to one
#: message, and before that message is quarantined with fresh properties.
REFUSALS_UNTIL_SINGLE = 1
REFUSALS_UNTIL_STRIPPED = 3
#: Sessions in a row that the broker ends with an internal error before it is told what that means, and then between two times.
UNREADABLE_UNTIL_TOLD = 3
UNREADABLE_EVERY = 20
#: AMQP 0.9.1, section 1.6: what RabbitMQ closes a connection with to which it cannot translate a message.
_INTERNAL_ERROR: Final = 541
#: By protocol: what RabbitMQ cannot translate to it, and the protocol that such a message came over.
_UNTRANSLATED: Final = {
    "amqp091": ("an application property of type uuid or char", "amqp10"),
    "amqp10": ("a header that is a decimal", "amqp091"),
}
#: Heartbeat where the URL says nothing: a dead link is noticed within about twice as long; seconds.
HEARTBEAT_S = 10
#: Longest pause between two sessions; seconds.
PAUSE_S_MAX = 10.0


#: Answers a survey, and tells its argument why markers of parts would prove nothing.
Surveyor = Callable[[Callable[[str], None]], steps.Surveyed]


class Inspection(Protocol):
    """
    What a look at the queues and exchanges found out.
    """

    @property
    def exact_possible(self) -> bool:
        """Whether the target is known to be classic, unable to refuse, and on the broker's only node."""

    @property
    def target_type(self) -> str:
        """What kind of queue the target is: "classic", "quorum", "stream"; empty when it could not be seen."""

    @property
    def may_refuse(self) -> bool:
        """Whether the target or the quarantine may refuse a message, or nobody knows."""

    @property
    def reason(self) -> str:
        """Why exact forwarding is possible, or why it is not."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should mend, each with its fix."""


@frozen
class ShimSettings:
    """
    What one shim is told to do; one shim forwards one queue.
    """

    #: ``amqp://`` or ``amqps://``; several hosts of one cluster separated by commas.
    amqp: str = field(repr=False)
    #: ``redis://``, ``rediss://`` or ``unix://``.
    redis: str = field(repr=False)
    queue: str
    relay: RelaySettings = field(factory=RelaySettings)
    #: "auto": exact where that is known to be sound; "exact"; "confirmed".
    forwarding: str = "auto"
    #: Deliveries the broker may send ahead; None: two batches.
    prefetch: int | None = None
    redis_prefix: str = KEY_PREFIX
    #: What ingress and target are spoken to with; see :mod:`dedup.protocols`.
    protocol: str = "amqp091"


class Shim:
    """
    The shim of one queue.

    Args:
        settings: What to do.
        inspect: Looks at the topology before each session; raises TopologyError when something
            is missing or would lose messages.
        survey: Reads who leads a target that has a leader, and tells why it cannot be known; asked where
            forwarding is confirmed. None: it is never known.
        report, notice: Told what happens; called in the thread of run().
        step: Called around each effect, for fault tests.
    """

    def __init__(
        self,
        settings: ShimSettings,
        *,
        inspect: Callable[[], Inspection],
        survey: Surveyor | None = None,
        report: Callable[[steps.Report], None] = lambda _: None,
        notice: Callable[[str, dict[str, Any]], None] = lambda _name, _facts: None,
        step: Callable[[str, steps.Effect], None] = lambda _when, _effect: None,
    ) -> None:
        self.settings = settings
        self._inspect = inspect
        self._survey = survey
        self._notice = notice
        self._report = report
        self._observer = Observer(self._on_report, notice, step)
        self._parameters = connection_parameters(
            settings.amqp, name=f"dedup shim {settings.queue}", heartbeat_s=HEARTBEAT_S
        )
        vhost = str(self._parameters[0].virtual_host)
        self.store = RedisStore(
            settings.redis, vhost=vhost, queue=settings.queue, prefix=settings.redis_prefix
        )
        if not session_type(settings.protocol).can_be_exact and settings.forwarding == "exact":
            raise ConfigError(
                f"protocol {settings.protocol!r} forwards with confirms; use forwarding auto or confirmed, or protocol amqp091"
            )
        self._stopping = threading.Event()
        self._session: Session | None = None
        self._warned: set[str] = set()
        self._looked: Inspection | None = None
        #: The target has refused part of a transaction: never again exact.
        self._partial = False
        #: Sessions in a row that ended because the broker closed the channel on a publish.
        self._refusals = 0
        #: Messages a careful session has left before the next one may go at full speed.
        self._careful = 0
        #: Sessions in a row that settled nothing.
        self._failures = 0
        #: Sessions in a row that ended because the broker failed over what it was to deliver.
        self._unreadable = 0

    def run(self) -> None:
        """
        Forward until stop().

        The first look must succeed, for a person is watching: what is wrong then is raised. What
        goes wrong later was right before, so it is told and waited for.

        Raises:
            ConfigError: at the first look, a setting cannot work; the message names it.
            TopologyError: at the first look, something is missing or would lose messages.
            UnavailableError: at the first look, broker or Redis cannot be reached.
            StateFormatError: the state in Redis was written by another version.
        """
        for warning in self.store.check():
            self._warn(warning)
        exact = self._choose(self._inspect())
        try:
            while not self._stopping.is_set():
                ended = self._run_session(exact)
                if self._after(ended):
                    exact = self._look_again(exact)
        finally:
            self.store.close()

    def stop(self) -> None:
        """
        Finish the batch, settle and end; from any thread, but not from a signal handler.
        """
        self._stopping.set()
        session = self._session
        if session is not None:
            session.stop()

    def _run_session(self, exact: bool) -> Ended:
        stripping = self._refusals >= REFUSALS_UNTIL_STRIPPED
        self._careful = 1 if stripping else self.settings.relay.batch_max
        session = self._make_session(exact)
        self._session = session
        if self._stopping.is_set():
            # stop() may have come before the session was there to hear it.
            session.stop()
        ended = session.run()
        self._session = None
        return ended

    def _make_session(self, exact: bool) -> Session:
        return session_type(self.settings.protocol)(
            names.guarding(self.settings.queue), **self._session_options(exact)
        )

    def _session_options(self, exact: bool) -> dict[str, Any]:
        """
        Return what every session is told beside its way.
        """
        return {
            "parameters": self._parameters[self._failures % len(self._parameters)],
            "relay": Relay(self._relay_settings(exact)),
            "store": self.store,
            "prefetch": self.settings.prefetch or 2 * self.settings.relay.batch_max,
            "survey": self._surveyor(exact),
            "observer": self._observer,
        }

    def _relay_settings(self, exact: bool) -> RelaySettings:
        """
        Return the settings of the next session: smaller steps when the broker refuses a message.
        """
        return evolve(
            self.settings.relay,
            exact=exact,
            trust_exact=self._exact_is_sound(),
            batch_max=1 if self._refusals >= REFUSALS_UNTIL_SINGLE else self.settings.relay.batch_max,
            strip_first=self._refusals >= REFUSALS_UNTIL_STRIPPED,
            # What stands before that message may have to be proven with a copy: nothing else gets past it.
            proof_wait_s=self.settings.relay.proof_wait_s if not self._refusals else 0.0,
        )

    def _exact_is_sound(self) -> bool:
        """
        Say whether markers of transactions prove something, whoever published them and however this shim forwards.
        """
        return self._looked is not None and self._looked.exact_possible and not self._partial

    def _surveyor(self, exact: bool) -> Callable[[], steps.Surveyed]:
        """
        Return who says whether markers of parts prove something.

        In transactions there are none; what a target refuses they would claim to be there; a classic
        queue on the broker's only node has no leader to change.
        """
        look = self._looked
        if exact or look is None or look.may_refuse:
            return lambda: steps.Surveyed(None)
        if look.exact_possible:
            return lambda: steps.Surveyed(Leadership("", 0, 0))
        if self._survey is None or look.target_type != "quorum":
            return lambda: steps.Surveyed(None)
        return partial(self._survey, self._warn_of_doubt)

    def _warn_of_doubt(self, reason: str) -> None:
        self._warn(f"when this shim dies, it leaves a whole batch in doubt and not one message: {reason}")

    def _on_report(self, report: steps.Report) -> None:
        """
        Pass a report on; end a careful session when it is past the message the broker refused.
        """
        self._report(report)
        if self._refusals and self._session is not None:
            self._careful -= sum(report.verdicts.values())
            # An end before the proof would have all of it delivered again, that message too.
            if self._careful <= 0 and not report.unproven:
                self._session.stop()

    def _after(self, ended: Ended) -> bool:
        """
        Draw the conclusions of a session; True when another one should follow.
        """
        self._notice("dedup.session_ended", {"outcome": ended.outcome.value, "reason": ended.reason})
        if ended.outcome is Outcome.STOPPED:
            self._refusals = 0
            return not self._stopping.is_set()
        if isinstance(ended.error, StateFormatError):
            raise ended.error
        self._partial = self._partial or ended.outcome is Outcome.PARTIAL
        self._refusals = self._refusals + 1 if ended.outcome is Outcome.REFUSED else 0
        self._failures = 0 if ended.progressed else self._failures + 1
        self._count_unreadable(ended)
        self._pause()
        return not self._stopping.is_set()

    def _count_unreadable(self, ended: Ended) -> None:
        """
        Tell of a message that the broker cannot translate: it fails over it whenever it delivers it, and nothing behind it comes.

        What stands before it may be settled anew each time, so that these sessions have done something and come no further.
        """
        failed = ended.outcome is Outcome.LOST and getattr(ended.error, "reply_code", 0) == _INTERNAL_ERROR
        self._unreadable = self._unreadable + 1 if failed else 0
        told = self._unreadable % UNREADABLE_EVERY == UNREADABLE_UNTIL_TOLD
        if told and (known := _UNTRANSLATED.get(self.settings.protocol)):
            what, other = known
            text = (
                f"the broker fails (541) over a message in {names.ingress(self.settings.queue)!r}, again and again: it cannot "
                f"translate something in it, {what}, say. Stop this shim and run one with --protocol {other}: it goes on where "
                "this one stopped"
            )
            self._notice("dedup.unreadable", {"sessions": self._unreadable, "reason": text})

    def _look_again(self, exact: bool) -> bool:
        """
        Inspect until it can be done; a topology that is wrong now was right before, so wait for it.
        """
        while not self._stopping.is_set():
            try:
                return self._choose(self._inspect())
            except DedupError as error:
                self._notice("dedup.unavailable", {"reason": str(error)})
                self._failures += 1
                self._pause()
        return exact

    def _choose(self, inspection: Inspection) -> bool:
        """
        Choose exact or confirmed forwarding and say why.
        """
        self._looked = inspection
        for warning in inspection.warnings:
            self._warn(warning)
        if inspection.target_type == "stream" and self.settings.protocol == BUILT_IN:
            self._warn(
                f"target {self.settings.queue!r} is a stream: behind a shim of AMQP 0.9.1 its readers of 0.9.1 find no headers that "
                "are lists or tables, death histories among them; --protocol amqp10 keeps these"
            )
        wanted = self.settings.forwarding
        if wanted == "exact" and not inspection.exact_possible:
            raise TopologyError(
                f"exact forwarding into {self.settings.queue!r} is not sound: {inspection.reason}; "
                "use forwarding auto or confirmed"
            )
        can = session_type(self.settings.protocol).can_be_exact
        exact = wanted != "confirmed" and self._exact_is_sound() and can
        reason = "chosen" if wanted == "confirmed" else inspection.reason
        if not can:
            reason = f"protocol {self.settings.protocol} has no transactions"
        if self._partial and wanted != "confirmed":
            reason = "the target has refused part of a transaction"
        self._notice("dedup.forwarding", {"exact": exact, "reason": reason})
        return exact

    def _pause(self) -> None:
        if failures := max(self._failures, self._unreadable):
            self._stopping.wait(delay_s(failures - 1, random.random(), max_s=PAUSE_S_MAX))

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._notice("dedup.warning", {"text": text})
