-- Write what changed since the write before.
--
-- KEYS[1]  hash, the state of one guarded queue (fields: see claim.lua and encoding.py)
-- ARGV[1]  decimal, the writer's token
-- ARGV[2]  decimal, the revision the writer expects to find
-- ARGV[3]  decimal, the revision it leaves
-- ARGV[4]  how many fields are deleted
-- ARGV[5]  the names of the fields to delete, then pairs of field and value to set
--
-- Reply    'saved'    written, now or when this very write was sent before
--          'behind'   nothing changed: Redis has lost writes, the writer must replace everything
--          'fenced'   nothing changed: another relay has a higher token
--
-- Idempotent: it sets, it never adds.

local stored = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
local token = tonumber(ARGV[1])
if stored > token then return 'fenced' end
if stored < token then return 'behind' end
-- Another process may have lost what this one was told, even if the numbers still fit.
if redis.call('HGET', KEYS[1], 'process') ~= string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') then
    return 'behind'
end
local revision = redis.call('HGET', KEYS[1], 'revision')
if revision == ARGV[3] then return 'saved' end
if revision ~= ARGV[2] then return 'behind' end

local first = 5 + tonumber(ARGV[4])
for i = 5, first - 1 do redis.call('HDEL', KEYS[1], ARGV[i]) end
for i = first, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'revision', ARGV[3])
return 'saved'
