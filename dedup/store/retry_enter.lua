-- Make a session known to a schedule, and see whether another server answers than the one before.
--
-- KEYS     of retry_store.lua
-- ARGV[1]  name of the session; its fence is held already
--
-- Reply    'entered'
--
-- Idempotent.

local now = redis.call('TIME')
local process = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local before = redis.call('HGET', KEYS[1], 'process')
if before ~= process then
    -- It may have lost the claim of anything that is due by now.
    if before then redis.call('HSET', KEYS[1], 'doubt', now[1] * 1000 + math.floor(now[2] / 1000)) end
    redis.call('HSET', KEYS[1], 'process', process)
end
redis.call('HSETNX', KEYS[2], ARGV[1], '0')
return 'entered'
