-- Delete what was published, and put back what was refused.
--
-- KEYS     of retry_store.lua
-- ARGV[1]  name of the session
-- ARGV[2]  until what was refused is due again; ms
-- ARGV[3]  how many were published
-- ARGV[4]  the numbers of those, then of those that were refused
--
-- Reply    'settled', or 'fenced' when the session is not known
--
-- Idempotent: it speaks only of what the session has claimed.

if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return 'fenced' end
local clock = redis.call('TIME')
local due = clock[1] * 1000 + math.floor(clock[2] / 1000) + tonumber(ARGV[2])
local doubt = tonumber(redis.call('HGET', KEYS[1], 'doubt') or '0')
local bytes = 0
for i = 4, #ARGV do
    local id = ARGV[i]
    local was_due = tonumber(redis.call('ZSCORE', KEYS[8], id) or '-1')
    if redis.call('ZREM', KEYS[8], id) == 1 then
        if i < 4 + tonumber(ARGV[3]) then
            bytes = bytes + redis.call('HSTRLEN', KEYS[4], id)
            redis.call('HDEL', KEYS[4], id)
            redis.call('SREM', KEYS[7], id)
        else
            if was_due <= doubt then redis.call('SADD', KEYS[7], id) end
            redis.call('ZADD', KEYS[3], string.format('%.0f', due), id)
        end
    end
end
if bytes > 0 then redis.call('HINCRBY', KEYS[1], 'bytes', -bytes) end
return 'settled'
