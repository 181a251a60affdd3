-- Take a session out of a schedule; what it had claimed goes back, and may have been published already.
--
-- KEYS     of retry_store.lua; KEYS[8] is that of the session which is taken out
-- ARGV[1]  name of the session: its connection is dead
--
-- Reply    how many messages were put back
--
-- Idempotent.

redis.call('HDEL', KEYS[2], ARGV[1])
local claimed = redis.call('ZRANGE', KEYS[8], 0, -1, 'WITHSCORES')
for i = 1, #claimed, 2 do
    redis.call('ZADD', KEYS[3], claimed[i + 1], claimed[i])
    redis.call('SADD', KEYS[7], claimed[i])
end
redis.call('DEL', KEYS[8])
return #claimed / 2
