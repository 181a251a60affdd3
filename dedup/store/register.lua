-- Hand out the next range of a publisher id.
--
-- KEYS[1]  hash, publisher id -> "range at owner holder" of its newest owner (at: seconds since 2024), and
--          '' -> "process since": the server's run id, and since when nothing was forgotten. In the same key, so that
--          whatever takes the records, an eviction or a person, takes the claim to have them all along.
-- KEYS[2]  sorted set, publisher id by when it was heard of last (seconds since 2024)
-- ARGV[1]  publisher id; empty: only take note of what was forgotten
-- ARGV[2]  owner
-- ARGV[3]  holder
-- ARGV[4]  decimal, range of the highest sequence that the publisher knows was used
-- ARGV[5]  decimal, how far ranges may run ahead of the clock
-- ARGV[6]  decimal, publisher ids remembered at the most
-- ARGV[7]  decimal, seconds of silence after which one may be forgotten
--
-- Reply    {'registered', record}
--          {'later', seconds}  so far the clock has to move on first
--          {'ahead'}    the publisher's own sequences are further ahead of the clock than any range may be
--          {'full'}     no room, and nobody was silent for long enough
--
-- Idempotent for each owner: asking again after a lost reply gives the same range. The rule is core/ranges.py's.

local now = tonumber(redis.call('TIME')[1]) - 1704067200
local process = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local wrote, since = string.match(redis.call('HGET', KEYS[1], '') or '', '^(%w+) (%d+)$')
since = tonumber(since)
if wrote ~= process or since > now then
    since = now
    redis.call('HSET', KEYS[1], '', process .. ' ' .. now)
end
local id, owner, last, lead = ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])
if id == '' then return {'noted'} end

local record = redis.call('HGET', KEYS[1], id)
local range, at, before = 0, 0, nil
if record then
    range, at, before = string.match(record, '^(%d+) (%d+) (%w*) ')
    range, at = tonumber(range), tonumber(at)
end
if before == owner and range > last then
    redis.call('ZADD', KEYS[2], now, id)
    return {'registered', record}
end
if last > now + lead then return {'ahead'} end
if not record and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[6]) then
    local oldest = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    if tonumber(oldest[2]) > now - tonumber(ARGV[7]) then return {'full'} end
    redis.call('ZREM', KEYS[2], oldest[1])
    redis.call('HDEL', KEYS[1], oldest[1])
end
local following = math.max(range + 1, last + 1, now)
if at <= since then following = math.max(following, since + lead + 1) end
if following > now + lead then return {'later', following - now - lead} end

record = string.format('%.0f %.0f %s %s', following, now, owner, ARGV[3])
redis.call('HSET', KEYS[1], id, record)
redis.call('ZADD', KEYS[2], now, id)
return {'registered', record}
