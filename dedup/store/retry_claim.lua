-- Take what is due for a session, the oldest first.
--
-- KEYS     of retry_store.lua
-- ARGV[1]  name of the session
-- ARGV[2]  how many at the most
-- ARGV[3]  bytes of them at the most; a larger one comes alone
--
-- Reply    three for each: number; '1' when it may have been published already, else '0'; the message, nothing when it is
--          there no more. 'fenced' when the session is not known
--
-- Idempotent: what it has claimed and not settled is its answer, whether it was heard or not.

if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return 'fenced' end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local process = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if redis.call('HGET', KEYS[1], 'process') ~= process then
    redis.call('HSET', KEYS[1], 'process', process, 'doubt', string.format('%.0f', now))
end
local doubt = tonumber(redis.call('HGET', KEYS[1], 'doubt') or '0')
local found = redis.call('ZRANGE', KEYS[8], 0, -1, 'WITHSCORES')
if #found == 0 then
    local due = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[2])
    local bytes = 0
    for i = 1, #due, 2 do
        bytes = bytes + redis.call('HSTRLEN', KEYS[4], due[i])
        if i > 1 and bytes > tonumber(ARGV[3]) then break end
        redis.call('ZREM', KEYS[3], due[i])
        redis.call('ZADD', KEYS[8], due[i + 1], due[i])
        found[i], found[i + 1] = due[i], due[i + 1]
    end
end
local reply = {}
for i = 1, #found, 2 do
    local id = found[i]
    local doubtful = tonumber(found[i + 1]) <= doubt or redis.call('SISMEMBER', KEYS[7], id) == 1
    reply[#reply + 1] = id
    reply[#reply + 1] = doubtful and '1' or '0'
    reply[#reply + 1] = redis.call('HGET', KEYS[4], id)
end
return reply
