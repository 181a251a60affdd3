"""Perform what a relay asks for, one effect at a time and in every way it can go."""

from __future__ import annotations

from collections.abc import Iterator

from dedup.core import steps
from dedup.core.records import Leadership, Marker
from tests.simulation.relay_servers import WRITE_S, Servers
from tests.simulation.relay_state import World, disconnected, killed, spent, strayed, subsets


class Effects(Servers):
    """
    The effects of the relay; of the ways one can go, the first is the good one.
    """

    def _performs(self, world: World) -> Iterator[tuple[str, World]]:
        """
        Perform the relay's next effect, in every way it can go.
        """
        if not world.pending:
            return
        number = world.pending[0]
        effect = self.catalog[number]
        after = world._replace(pending=world.pending[1:])
        name = self._name(number)
        match effect:
            case steps.Save() | steps.Replace():
                yield from self._writes(world, after, effect, name)
            case steps.Forward():
                yield from self._forwards(world, after, effect, name)
            case steps.Ack(tag):
                restarts = world.faults.broker_restarts or world.faults.source_restarts
                done = tuple(m for t, m in world.unacked if t <= tag)
                left = tuple((t, m) for t, m in world.unacked if t > tag)
                yield name, after._replace(unacked=left, acked=world.acked + done if restarts else ())
            case steps.Anchor():
                yield from self._anchors(world, after, effect, name)
            case steps.ClaimState(token_min):
                redis = world.redis._replace(token=max(world.redis.token + 1, token_min))
                after = self._redis_changed(after, redis)._replace(revision=redis.revision)
                restarted = redis.written_to != redis.process
                claimed = steps.Claimed(redis.token, self.catalog[redis.state], restarted)
                yield name, self._told(after, ("claimed", redis.token, redis.state, restarted), claimed)
            case steps.Survey():
                leadership = Leadership("", world.term, 0) if self.surveyed else None
                local = not self.is_other(world.starts - 1)
                answer = steps.Surveyed(leadership, local)
                yield name, self._told(after, ("surveyed", leadership, local), answer)
            case steps.Consume():
                yield name, after._replace(consuming=True)
            case steps.Close():
                yield name, self._told(disconnected(after), ("closed",), steps.Closed())
            case steps.End():
                yield name, killed(after)
            case _:
                raise AssertionError(f"unknown effect {effect}")

    def _writes(
        self, world: World, after: World, effect: steps.Save | steps.Replace, name: str
    ) -> Iterator[tuple[str, World]]:
        redis, answer = self._written(world, effect, world.revision)
        if answer == "fenced":
            yield f"{name}: fenced", killed(after)
            return
        if answer == "behind":
            yield f"{name}: behind", self._told(after, ("behind",), steps.StoreBehind(), passed_s=WRITE_S)
            return
        after = self._redis_changed(after, redis)._replace(revision=world.revision + 1)
        yield name, self._told(after, ("saved",), steps.Saved(), passed_s=WRITE_S)
        if world.faults.lost_replies:
            # The store repeats it: the same write must change nothing the second time.
            repeated = self._written(world._replace(redis=redis), effect, world.revision)
            assert repeated == (redis, "saved"), "a repeated write changed something"
            again = self._told(spent(after, "lost_replies"), ("saved",), steps.Saved(), passed_s=WRITE_S)
            yield f"{name}, its answer lost, again", again

    def _anchors(
        self, world: World, after: World, effect: steps.Anchor, name: str
    ) -> Iterator[tuple[str, World]]:
        strays, answer = effect.strays, steps.Anchored()
        yield (
            name,
            self._published(
                after, (), effect.markers, effect.release, answer, record=effect.record, strays=strays
            ),
        )
        if world.faults.missing_queues:
            for missed in subsets(len(strays)):
                if missed:
                    kept = [m for i, m in enumerate(strays) if i not in missed]
                    some = strayed(spent(after, "missing_queues"), [strays[i] for i in missed])
                    some = self._published(some, (), effect.markers, effect.release, answer, strays=kept)
                    yield f"{name}: {list(missed)} FIND NO QUEUE", some

    def _forwards(
        self, world: World, after: World, effect: steps.Forward, name: str
    ) -> Iterator[tuple[str, World]]:
        outgoing, marker, release, record = effect.outgoing, effect.marker, effect.release, effect.record
        between = [part for _, part in effect.between]
        whole = self._published(
            after, outgoing, (*between, marker), release, steps.Forwarded(), record=record
        )
        if any(not out.reason for out in outgoing):
            # A confirm: whatever was handed over before is there for good.
            whole = whole._replace(uncommitted=(), channel_term=world.term if self.surveyed else 0)
        yield name, whole
        exact = marker.batch.exact
        if world.faults.refusals:
            for refused in subsets(len(outgoing)):
                if refused:
                    stored = [out for i, out in enumerate(outgoing) if i not in refused]
                    # A transaction puts its marker into the ledger whatever became of the messages.
                    markers = (marker,) if exact else tuple(between)
                    some = spent(after, "refusals")
                    some = self._published(some, stored, markers, release, steps.Refused(refused))
                    yield f"{name}: {list(refused)} refused", some._replace(pausing=not some.pending)
        if world.faults.missing_queues:
            for missed in subsets(len(outgoing)):
                if missed:
                    stored = [out for i, out in enumerate(outgoing) if i not in missed]
                    some = spent(after, "missing_queues")
                    some = strayed(some, [outgoing[i].arrival.payload for i in missed])
                    some = self._published(
                        some, stored, (*between, marker), release, steps.Forwarded(), record=record
                    )
                    yield f"{name}: {list(missed)} FIND NO QUEUE", some
        if world.faults.partial_commits and exact:
            for done in subsets(len(outgoing)):
                stored = [outgoing[i] for i in done]
                part = spent(after, "partial_commits")
                for told in _nothing_or(record):
                    end = self._published(
                        part, stored, (marker,), release, steps.CommitPartial(), record=told
                    )
                    yield f"{name}: partial, {list(done)} stored{' and told' * bool(told)}", end
        if world.faults.kills and not exact:
            yield from self._kills_within(world, after, effect, name)

    def _kills_within(
        self, world: World, after: World, effect: steps.Forward, name: str
    ) -> Iterator[tuple[str, World]]:
        dead = spent(after, "kills")._replace(relay=0)
        for done, markers in self._cuts(world, effect):
            sent = [effect.outgoing[i] for i in done]
            part = self._published(dead, sent, markers, effect.release)
            if self.surveyed:
                handed = [(out.arrival.payload, out.marked) for out in sent if not out.reason]
                part = part._replace(uncommitted=tuple(sorted((*part.uncommitted, *handed))))
            yield f"KILL within {name}, {list(done)} stored, {len(markers)} markers", killed(part)
            if effect.record is not None and len(done) == len(effect.outgoing):
                between = [marker for _, marker in effect.between]
                after_all = self._published(dead, sent, between, effect.release, record=effect.record)
                yield f"KILL within {name}, all stored and told", killed(after_all)

    def _cuts(self, world: World, effect: steps.Forward) -> Iterator[tuple[tuple[int, ...], list[Marker]]]:
        """
        Yield what a killed channel may have done: messages stored, and markers in between.

        Of what it carried out, which is a prefix, nothing is missing if it knew who leads.
        """
        count = len(effect.outgoing)
        if not self.surveyed:
            yield (), []
            for done in subsets(count):
                yield done, [marker for position, marker in effect.between if position == 0]
            return
        knows = world.channel_term in (0, world.term)
        for cut in range(count + 1):
            before = [part for position, part in effect.between if position < cut]
            last = [part for position, part in effect.between if position == cut]
            for markers in [before, before + last] if last else [before]:
                for done in [tuple(range(cut))] if knows else subsets(cut):
                    yield done, markers


def _nothing_or(record: steps.Record | None) -> list[steps.Record | None]:
    """
    Return the ways a record may go that goes on its own.
    """
    return [None] if record is None else [None, record]
