-- Tell who is the newest owner of a publisher id, and write down an owner that was forgotten.
--
-- KEYS[1]  hash, publisher id -> "range at owner holder" of its newest owner (see register.lua)
-- KEYS[2]  sorted set, publisher id by when it was heard of last
-- ARGV[1]  publisher id
-- ARGV[2]  owner; empty: only tell
-- ARGV[3]  holder
-- ARGV[4]  decimal, the owner's range
-- ARGV[5]  decimal, publisher ids remembered at the most
--
-- Reply    the record of the newest owner; empty when none is known
--
-- Idempotent.

local id, owner, range = ARGV[1], ARGV[2], tonumber(ARGV[4])
local record = redis.call('HGET', KEYS[1], id)
if owner == '' then return record or '' end
local newest = record and tonumber(string.match(record, '^(%d+) ')) or 0
local known = redis.call('ZSCORE', KEYS[2], id)
if newest < range and (known or redis.call('ZCARD', KEYS[2]) < tonumber(ARGV[5])) then
    -- "at 0": from a time that this registry has forgotten, so the next range keeps its distance.
    record = string.format('%.0f 0 %s %s', range, owner, ARGV[3])
    redis.call('HSET', KEYS[1], id, record)
    newest, known = range, true
end
if known and newest == range then
    redis.call('ZADD', KEYS[2], tonumber(redis.call('TIME')[1]) - 1704067200, id)
end
return record or ''
