"""Batches, beliefs and what else hypothesis needs to try the encodings of records."""

from __future__ import annotations

from hypothesis import strategies as st

from dedup.core.identity import SEQUENCE_MAX
from dedup.core.message_ids import message_key
from dedup.core.records import (
    NUMBER_MAX,
    Batch,
    Belief,
    Leadership,
    Parts,
    by_publisher,
)

IDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=50)
#: What batches name: publishers, and message ids by their keys.
NAMES = IDS | st.binary(min_size=1, max_size=80).map(message_key)
NUMBERS = st.sets(st.integers(1, 60) | st.integers(SEQUENCE_MAX - 9, SEQUENCE_MAX), max_size=40)
LEADERSHIPS = st.builds(
    Leadership, leader=st.text(max_size=20), term=st.integers(0, NUMBER_MAX), index=st.integers(0, NUMBER_MAX)
)
PARTS = st.builds(
    Parts,
    order=st.lists(st.tuples(NAMES, st.integers(1, 60)), unique=True, max_size=20),
    every=st.integers(1, 2**40),
    leadership=LEADERSHIPS,
)
BELIEFS = st.builds(
    Belief,
    sequences=st.lists(st.tuples(NAMES, st.integers(1, 60)), unique=True, max_size=20).map(by_publisher),
    leadership=LEADERSHIPS,
)
BATCHES = st.builds(
    Batch,
    token=st.integers(0, 2**50),
    number=st.integers(0, 2**50),
    exact=st.booleans(),
    sequences=st.dictionaries(NAMES, NUMBERS.map(lambda numbers: tuple(sorted(numbers))), max_size=4),
) | st.builds(
    lambda number, parts: Batch(7, number, False, by_publisher(parts.order), parts),
    number=st.integers(0, 2**50),
    parts=PARTS,
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
