-- Forget digests whose letters are acknowledged for good, and those that nobody has asked for in a long time.
--
-- KEYS     of retry_store.lua
-- ARGV[1]  name of the session
-- ARGV[2]  digests older than this are forgotten too; seconds
-- ARGV[3]  the digests, each as often as it was written down
--
-- Not idempotent: a digest that is forgotten too early was asked for in the half minute of a lost reply.

if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return 'fenced' end
local function forget(digest)
    if redis.call('HINCRBY', KEYS[5], digest, -1) < 1 then
        redis.call('HDEL', KEYS[5], digest)
        redis.call('ZREM', KEYS[6], digest)
    end
end
for i = 3, #ARGV do forget(ARGV[i]) end
local before = redis.call('TIME')[1] - tonumber(ARGV[2])
local old = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', before, 'LIMIT', 0, 1000)
for _, digest in ipairs(old) do
    redis.call('HDEL', KEYS[5], digest)
    redis.call('ZREM', KEYS[6], digest)
end
return 'forgotten'
